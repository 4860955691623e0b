"""No NaN: neither in the logits of any step of the session nor, after all features, in its caches.

Runs last. A value that is not finite in a cache row stays there until the row is used again.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    Refused,
    answered,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.schema import Check

REQUESTS = 12
TOKENS = 8


def observe(probe: Probe) -> Facts:
    """A mixed batch, then a scan."""
    answers = probe.ask(
        [
            Request(prompt=probe.prompt(1 + 7 * i, i), sampling=greedy(TOKENS), arrive_after=i // 3)
            for i in range(REQUESTS)
        ]
    )
    caches = probe.session.caches(whole=True)
    if caches is None:
        raise Refused("the caches of this engine cannot be scanned")
    return {
        **answered(answers),
        "nan_logits": probe.nan_logits,
        "caches": caches.nonfinite,
        "null": caches.null_nonfinite,
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("nan_logits", facts["nan_logits"], 0),
        equal("nonfinite_cache_values", facts["caches"], 0),
        equal("nonfinite_null_block_values", facts["null"], 0),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("finite", observe, checks, last=True)
