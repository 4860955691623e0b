"""The whole context: answers up to the last position, and a clean refusal of one token more."""

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
from fasttrack.errors import RunError
from fasttrack.schema import Check

LEFT = 8
"""Tokens that the longest prompt leaves room for."""


def observe(probe: Probe) -> Facts:
    """Prompts of a quarter, a half and nearly all of the context; then one that does not fit."""
    room = probe.room
    lengths = (room // 4, room // 2, room - LEFT)
    requests = [Request(prompt=probe.prompt(n, n), sampling=greedy(2 * LEFT)) for n in lengths]
    answers = probe.ask(requests)
    try:
        probe.ask([Request(prompt=probe.prompt(room + 1), sampling=greedy(1))])
        refused = False
    except RunError as error:
        if error.code != "ENG-006":
            raise
        refused = True
    (after,) = probe.ask(requests[:1])
    longest = answers[-1]
    return {
        **answered(answers),
        "prompt": len(requests[-1].prompt),
        "room": room,
        "to_the_limit": len(longest.token_ids),
        "reason": longest.finish_reason,
        "refused": refused,
        "answers_after": probe.agree(answers[0], after),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("longest_prompt", facts["prompt"], facts["room"] - LEFT),
        equal("tokens_up_to_the_limit", facts["to_the_limit"], LEFT),
        equal("finish_reason_at_the_limit", facts["reason"], "length"),
        equal("refused_beyond_the_limit", facts["refused"], True),
        equal("same_answer_after_the_refusal", facts["answers_after"], True),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("full_context", observe, checks)
