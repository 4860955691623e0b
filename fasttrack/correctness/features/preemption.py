"""Preemption: a cache too small for the batch takes requests out and computes them again."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    answered,
    at_least,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.engine.setting import Variant
from fasttrack.schema import Check

# Blocks of 16 tokens still hold one request of this length, and one of 768 is shorter than it.
SMALL = Variant("small_cache", {"num_gpu_blocks_override": 52, "max_model_len": 800})
REQUESTS = 28
TOKENS = 16
BEFORE = 6
"""Tokens by which a prompt falls short of a block: all requests need their next block at once."""


def observe(probe: Probe) -> Facts:
    """More requests than the cache holds, together and one by one."""
    blocks = max(1, 128 // probe.block)
    requests = [
        Request(prompt=probe.prompt(blocks * probe.block - BEFORE, i), sampling=greedy(TOKENS))
        for i in range(REQUESTS)
    ]
    made = probe.ask_all(requests)
    some = requests[:: REQUESTS // 4] + requests[-3:]
    alone = [probe.ask([request])[0] for request in some]
    crowded = [made.answers[requests.index(request)] for request in some]
    return {
        **answered(made.answers),
        "preemptions": made.preemptions,
        "whole": sum(len(answer.token_ids) == TOKENS for answer in made.answers),
        "agree": sum(probe.agree(one, other) for one, other in zip(alone, crowded, strict=True)),
        "compared": len(some),
        "left": made.left,
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        at_least("preemptions", facts["preemptions"], 1),
        equal("answers_of_full_length", facts["whole"], REQUESTS),
        equal("same_answers_as_alone", facts["agree"], facts["compared"]),
        equal("requests_left", facts["left"], 0),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("preemption", observe, checks, SMALL)
