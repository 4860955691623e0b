"""Stop strings end an answer where they appear, and are left out of its text."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import Facts, Feature, Probe, Refused, equal, greedy
from fasttrack.engine.base import Request
from fasttrack.schema import Check

TOKENS = 24


def observe(probe: Probe) -> Facts:
    """Stop at a piece of the greedy answer's own text."""
    prompt = probe.prompt(20)
    (free,) = probe.ask([Request(prompt=prompt, sampling=greedy(TOKENS))])
    printable = [i for i, letter in enumerate(free.text) if i > 1 and letter.isascii()]
    if not printable:
        raise Refused("the model's greedy answer has no printable text to stop at")
    stop = free.text[printable[0]]
    (stopped,) = probe.ask([Request(prompt=prompt, sampling=greedy(TOKENS, stop=(stop,)))])
    return {
        "stop": stop,
        "finish_reason": stopped.finish_reason,
        "contains_stop": stop in stopped.text,
        "is_prefix": free.text.startswith(stopped.text),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("finish_reason", facts["finish_reason"], "stop"),
        equal("text_without_stop", facts["contains_stop"], False),
        equal("text_is_prefix", facts["is_prefix"], True),
    ]


FEATURE = Feature("stop_strings", observe, checks)
