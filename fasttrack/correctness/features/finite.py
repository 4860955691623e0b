"""No NaN: neither in the logits of any step of the session nor, after all features, in its caches.

Runs last. A value that is not finite in a cache row stays there until the row is used again. Where
layers of several formats share memory, or live in other processes, caches cannot be looked at: then
the logits alone are, which the record shows by the checks it has.
"""

from __future__ import annotations

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
    return {
        **answered(answers),
        "nan_logits": probe.nan_logits,
        "caches": caches.nonfinite if caches else None,
        "null": caches.null_nonfinite if caches else None,
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    found = [equal("nan_logits", facts["nan_logits"], 0), *same_as_base(facts, base)]
    if facts["caches"] is not None:
        found.append(equal("nonfinite_cache_values", facts["caches"], 0))
        found.append(equal("nonfinite_null_block_values", facts["null"], 0))
    elif base is not None:
        found.append(equal("caches_seen", False, base["caches"] is not None))
    return found


FEATURE = Feature("finite", observe, checks, last=True)
