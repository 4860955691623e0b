"""Structured output: JSON schema, regular expression, choice and grammar, greedy and sampled.

An answer cut at the token limit is neither valid nor broken: JSON allows white space without end,
and a model may wander in it even where a bias speaks against it. The other kinds cannot be cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from fasttrack.correctness.features.probe import Facts, Feature, Probe, at_most, equal
from fasttrack.engine.base import Request, Sampling
from fasttrack.schema import Check

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "exact": {"type": "boolean"}},
    "required": ["colour", "exact"],
    "additionalProperties": False,
}
TOKENS = 160
REGEX = "[a-c]{3}-[0-9]{2}"
CHOICES = ["accept", "reject"]
GRAMMAR = 'root ::= ("ab" | "cd") "-" [0-9]'
KINDS: tuple[dict[str, Any], ...] = (
    {"json": SCHEMA},
    {"regex": REGEX},
    {"choice": CHOICES},
    {"grammar": GRAMMAR},
)


def valid(kind: dict[str, Any], text: str) -> bool:
    """Whether a text obeys its constraint."""
    if "regex" in kind:
        return re.fullmatch(REGEX, text) is not None
    if "grammar" in kind:
        return re.fullmatch("(ab|cd)-[0-9]", text) is not None
    if "choice" in kind:
        return text in CHOICES
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and set(value) == {"colour", "exact"}
        and value["colour"] in ("red", "green")
        and isinstance(value["exact"], bool)
    )


def observe(probe: Probe) -> Facts:
    """Ask for every kind, greedy and at temperature 1, all in one batch."""
    space = {ids[0]: -100.0 for ids in probe.session.encode([" ", "\n", "\t", "\r"])}
    asked = [
        (kind, Sampling(max_tokens=TOKENS, temperature=t, seed=probe.seed, ignore_eos=False,
                        structured=kind, logit_bias=space))
        for kind in KINDS
        for t in (0.0, 1.0)
    ]  # fmt: skip
    answers = probe.ask(
        [
            Request(prompt=probe.prompt(16, i), sampling=sampling)
            for i, (_, sampling) in enumerate(asked)
        ]
    )
    texts = [answer.text for answer in answers]
    return {
        "texts": texts,
        "cut": sum(answer.finish_reason == "length" for answer in answers[:2]),
        "valid": sum(valid(kind, text) for (kind, _), text in zip(asked, texts, strict=True)),
        "asked": len(asked),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """Every answer that came to an end is valid, and most did."""
    return [
        equal("valid_answers", facts["valid"], facts["asked"] - facts["cut"]),
        at_most("answers_cut_at_the_limit", facts["cut"], 1),
    ]


FEATURE = Feature("structured_output", observe, checks)
