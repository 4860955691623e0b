"""Batches around the sizes that engines prepare graphs for; what pads them must not matter.

A step of fewer rows than a prepared size runs with padded rows, which point at the cache's null
block. So the first request must answer alike in every batch, also when that block is full of NaN,
and no step may write the block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    answered,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Answer, Request
from fasttrack.schema import Check

SIZES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 63, 64)
POISONED = (1, 3, 5, 9, 17)
TOKENS = 6


def observe(probe: Probe) -> Facts:
    """One request in batches of every size, then in some of them beside a poisoned null block."""
    told = probe.session.info.fingerprint.get("max_num_seqs")
    most = told if isinstance(told, int) else probe.target.max_num_seqs
    before = probe.session.caches()
    found = [_first(probe, size) for size in SIZES if size <= most]
    after = probe.session.caches()
    facts: Facts = {
        **answered(found),
        "sizes": len(found),
        "agree": sum(probe.agree(found[0], answer) for answer in found),
        "null_kept": None,
    }
    if before is None or after is None:
        return facts
    poisoned = probe.session.caches(math.nan)
    beside = [_first(probe, size) for size in POISONED if size <= most]
    then = probe.session.caches()
    probe.session.caches(0.0)
    return facts | {
        "null_kept": before.null_sha256 == after.null_sha256 and poisoned == then,
        "poisoned": len(beside),
        "agree_poisoned": sum(probe.agree(found[0], answer) for answer in beside),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """What stock itself does not keep of the null block is not asked of the candidate."""
    found = [
        equal("same_answer_in_every_batch", facts["agree"], facts["sizes"]),
        *same_as_base(facts, base),
    ]
    if base is None or facts["null_kept"] is None or base["null_kept"] is None:
        return found
    if base["null_kept"]:
        found.append(equal("null_block_not_written", facts["null_kept"], True))
    if base["agree_poisoned"] == base["poisoned"]:
        found.append(equal("same_answer_beside_poison", facts["agree_poisoned"], facts["poisoned"]))
    return found


def _first(probe: Probe, size: int) -> Answer:
    """The first request's answer in a batch of that size."""
    return probe.ask(
        [Request(prompt=probe.prompt(5 + i % 3, i), sampling=greedy(TOKENS)) for i in range(size)]
    )[0]


FEATURE = Feature("batch_edges", observe, checks)
