"""Log-probabilities: one per token, finite, at most zero, alternatives listed, near base's."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    at_least,
    at_most,
    equal,
    same_as_base,
)
from fasttrack.engine.base import Request, Sampling
from fasttrack.schema import Check

ASKED = 5
TOKENS = 12
BAND_NATS = 1e-2


def observe(probe: Probe) -> Facts:
    """Greedy answers with alternatives, at several prompt lengths in one batch."""
    sampling = Sampling(max_tokens=TOKENS, logprobs=ASKED)
    answers = probe.ask(
        [Request(prompt=probe.prompt(n, n), sampling=sampling) for n in (1, 7, 40, 130)]
    )
    flat = [value for answer in answers for value in answer.logprobs]
    return {
        "ids": [list(answer.token_ids) for answer in answers],
        "gaps": [list(answer.gaps) for answer in answers],
        "logprobs": [list(answer.logprobs) for answer in answers],
        "reported": len(flat),
        "finite": sum(value is not None and value <= 1e-6 for value in flat),
        "fewest_listed": min((n for answer in answers for n in answer.listed), default=0),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    tokens = sum(len(ids) for ids in facts["ids"])
    found = [
        equal("one_per_token", facts["reported"], tokens),
        equal("finite_and_not_positive", facts["finite"], tokens),
        at_least("alternatives_listed", facts["fewest_listed"], ASKED),
        *same_as_base(facts, base, "ids", "gaps"),
    ]
    if base is not None:
        change = 0.0
        for mine, yours, a, b in zip(
            facts["logprobs"], base["logprobs"], facts["ids"], base["ids"], strict=True
        ):
            for x, y, s, t in zip(mine, yours, a, b, strict=False):
                if s != t:
                    break
                change = max(change, abs((x or 0.0) - (y or 0.0)))
        found.append(at_most("largest_change_nats", change, BAND_NATS))
    return found


FEATURE = Feature("logprobs", observe, checks)
