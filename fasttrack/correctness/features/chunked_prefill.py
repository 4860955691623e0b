"""Chunked prefill and mixed batches: a long prompt arrives while others decode."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    Refused,
    answered,
    at_least,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.schema import Check

TOKENS = 12


def observe(probe: Probe) -> Facts:
    """Short prompts and one longer than the step budget, together and then alone."""
    budget = probe.session.info.fingerprint.get("max_num_batched_tokens")
    budget = int(budget) if isinstance(budget, int) else 512
    length = min(budget + budget // 2, probe.room - TOKENS - 1)
    if length <= budget:
        raise Refused(f"no prompt of this target is longer than the step budget of {budget}")
    requests = [
        Request(prompt=probe.prompt(n, n), sampling=greedy(TOKENS)) for n in (9, 21, length)
    ]
    made = probe.ask_all(requests)
    alone = [probe.ask([request])[0] for request in requests]
    return {
        **answered(made.answers),
        "mixed_steps": sum(s.decode_tokens > 0 and s.prefill_tokens > 0 for s in made.steps),
        "agree": sum(probe.agree(a, b) for a, b in zip(made.answers, alone, strict=True)),
        "asked": len(requests),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        at_least("mixed_steps", facts["mixed_steps"], 1),
        equal("same_answers_as_alone", facts["agree"], facts["asked"]),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("chunked_prefill", observe, checks)
