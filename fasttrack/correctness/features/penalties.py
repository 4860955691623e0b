"""Presence, frequency and repetition penalties: repeats follow their sign, answers follow base's.

A presence penalty is at most 2, once per token: less than what a sure model prefers a token by, so
its two signs may come out alike. The others grow, or are large, and must not.

How many greedy answers under penalties change by rounding alone is seen in base, in another batch
composition: the gap that the engine reports is the one before penalties, so ties cannot be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fasttrack import stats
from fasttrack.correctness.features.probe import Facts, Feature, Probe, at_least, at_most
from fasttrack.engine.base import Answer, Request, Sampling
from fasttrack.schema import Check

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "presence": ({"presence_penalty": 2.0}, {"presence_penalty": -2.0}),
    "frequency": ({"frequency_penalty": 2.0}, {"frequency_penalty": -2.0}),
    "repetition": ({"repetition_penalty": 100.0}, {"repetition_penalty": 0.01}),
}
"""Against repeats, and for them."""
PROMPTS = 4
TOKENS = 16
LEVEL = 1e-3


def observe(probe: Probe) -> Facts:
    """Greedy answers under every penalty in one batch, and again in reverse order with fewer."""
    settings = [setting for pair in KINDS.values() for setting in pair]
    asked = [
        Request(prompt=probe.prompt(6 + salt, salt), sampling=Sampling(max_tokens=TOKENS, **chosen))
        for chosen in settings
        for salt in range(PROMPTS)
    ]
    answers = probe.ask(asked)
    half = len(asked) // 2
    again = (*probe.ask(asked[:half]), *probe.ask(asked[half:]))
    repeats = [sum(map(_repeats, answers[i : i + PROMPTS])) for i in range(0, len(asked), PROMPTS)]
    return {
        "answers": [list(answer.token_ids) for answer in answers],
        "moved": sum(a.token_ids != b.token_ids for a, b in zip(answers, again, strict=True)),
        "repeats": dict(zip(KINDS, zip(repeats[::2], repeats[1::2], strict=True), strict=True)),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    found = [
        at_most(f"repeats_against_{kind}", against, towards - (kind != "presence"))
        for kind, (against, towards) in facts["repeats"].items()
    ]
    if base is not None:
        mine, yours = facts["answers"], base["answers"]
        parted = sum(a != b for a, b in zip(mine, yours, strict=True))
        chance = stats.fisher_upper_tail(parted, base["moved"], len(yours))
        found.append(at_least("chance_of_as_many_changed_answers", chance, LEVEL))
    return found


def _repeats(answer: Answer) -> int:
    return len(answer.token_ids) - len(set(answer.token_ids))


FEATURE = Feature("penalties", observe, checks)
