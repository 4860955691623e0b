"""Log-probabilities of tokens and prompts: one each, finite, at most zero, near base's.

How near is what stock's own change between batch compositions allows, see `control`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    answered,
    at_least,
    at_most,
    changes,
    drawn,
    equal,
    prompt_changes,
    same_as_base,
)
from fasttrack.engine.base import Request, Sampling
from fasttrack.schema import Check

ASKED = 5
TOKENS = 12
LENGTHS = (1, 7, 40, 130)
UNSURE = (6, 50)
"""Prompts answered by letters of changing alphabets, of which no model is sure."""


def observe(probe: Probe) -> Facts:
    """Greedy answers with alternatives, at several prompt lengths in one batch."""
    asked = {"max_tokens": TOKENS, "logprobs": ASKED, "prompt_logprobs": 1}
    samplings = {n: Sampling(**asked) for n in LENGTHS}
    samplings |= {n: drawn(TOKENS, temperature=0.0, **asked) for n in UNSURE}
    answers = probe.ask(
        [Request(prompt=probe.prompt(n, n), sampling=chosen) for n, chosen in samplings.items()]
    )
    plain = answers[: len(LENGTHS)]
    flat = [value for answer in answers for value in answer.logprobs]
    return {
        **answered(plain),
        "tokens": [list(answer.token_ids) for answer in answers],
        "logprobs": [list(answer.logprobs) for answer in answers],
        "prompt_logprobs": [list(answer.prompt_logprobs) for answer in answers],
        "prompt_tolerance": probe.control.tolerance(probe.target.dtype, prompt=True),
        "reported": len(flat),
        "finite": sum(value is not None and value <= 1e-6 for value in flat),
        "fewest_listed": min((n for answer in answers for n in answer.listed), default=0),
        "best_first": sum(rank == 1 for answer in plain for rank in answer.ranks),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    tokens = sum(len(ids) for ids in facts["tokens"])
    plain = sum(len(ids) for ids in facts["ids"])
    scored = [value for values in facts["prompt_logprobs"] for value in values[1:]]
    found = [
        equal("one_per_token", facts["reported"], tokens),
        equal("finite_and_not_positive", facts["finite"], tokens),
        equal("greedy_token_ranks_first", facts["best_first"], plain),
        at_least("alternatives_listed", facts["fewest_listed"], ASKED),
        equal("one_per_prompt_token", len(scored), sum(n - 1 for n in (*LENGTHS, *UNSURE))),
        equal("prompt_finite_and_not_positive", sum(_fine(v) for v in scored), len(scored)),
        *same_as_base(facts, base),
    ]
    if base is not None:
        moved = [
            change
            for mine, yours, a, b in zip(
                facts["logprobs"], base["logprobs"], facts["tokens"], base["tokens"], strict=True
            )
            for change in changes(a, mine, b, yours)
        ]
        prompts = [
            change
            for mine, yours in zip(facts["prompt_logprobs"], base["prompt_logprobs"], strict=True)
            for change in prompt_changes(mine, yours)
        ]
        largest, prompt = max(moved, default=None), max(prompts, default=None)
        found.append(at_most("largest_change_nats", largest, facts["tolerance"]))
        found.append(at_most("largest_prompt_change_nats", prompt, facts["prompt_tolerance"]))
    return found


def _fine(value: float | None) -> bool:
    return value is not None and value <= 1e-6


FEATURE = Feature("logprobs", observe, checks)
