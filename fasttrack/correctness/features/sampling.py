"""Sampling: temperature, top-k, top-p and min-p draw from the distribution that stock draws from.

Drawn are letters under a regular expression, see `probe.drawn`. Two looks at them:

- support: under top-k, texts that begin alike go on with at most k different letters;
- distribution: counts of letters, two-sample G-test per prompt at tokens after the first, which
  prefill makes; corrected for draws of one sequence (`stats.two_sample_g`), summed over prompts,
  Holm's correction over the settings. An engine may give unseeded requests of both arms the same
  noise: then the test is on the safe side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fasttrack import stats
from fasttrack.correctness.features.probe import (
    LETTERS,
    Facts,
    Feature,
    Probe,
    at_least,
    at_most,
    drawn,
    equal,
)
from fasttrack.engine.base import Request
from fasttrack.schema import Check

TOP_K = 2
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature_0.7": {"temperature": 0.7},
    "temperature_1.5": {"temperature": 1.5},
    "top_k": {"temperature": 1.5, "top_k": TOP_K},
    "top_p": {"temperature": 1.5, "top_p": 0.6},
    "min_p": {"temperature": 1.5, "min_p": 0.2},
}
PROMPTS = 4
SEQUENCES = 16
TOKENS = 9
LEVEL = 1e-3
"""Of the whole family of tests."""


def observe(probe: Probe) -> Facts:
    """Unseeded texts, per setting and prompt: how often each letter was drawn."""
    counted: dict[str, list[list[list[int]]]] = {}
    texts: list[str] = []
    branches = 0
    for name, setting in SETTINGS.items():
        sampling = drawn(TOKENS, n=SEQUENCES, **setting)
        answers = probe.ask(
            [Request(prompt=probe.prompt(4, salt), sampling=sampling) for salt in range(PROMPTS)]
        )
        groups = [[lane.text for lane in (answer, *answer.others)] for answer in answers]
        counted[name] = [[_letters(text) for text in group] for group in groups]
        texts += [text for group in groups for text in group]
        if "top_k" in setting:
            branches = max(_branches(group) for group in groups)
    return {
        "counted": counted,
        "whole": sum(len(text) == TOKENS for text in texts),
        "distinct": len(set(texts)),
        "branches": branches,
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    planned = len(SETTINGS) * PROMPTS * SEQUENCES
    found = [
        equal("texts_of_full_length", facts["whole"], planned),
        at_least("different_texts", facts["distinct"], planned // 8),
        at_most("letters_after_one_beginning_under_top_k", facts["branches"], TOP_K),
    ]
    if base is not None:
        chances = []
        for name in SETTINGS:
            tests = [
                stats.two_sample_g(mine, yours)
                for mine, yours in zip(facts["counted"][name], base["counted"][name], strict=True)
            ]
            statistic = math.fsum(test.statistic for test in tests)
            freedom = sum(test.df for test in tests)
            chances.append(stats.chi_squared_upper_tail(statistic, freedom))
        adjusted = stats.holm(chances)
        found += [
            at_least(f"chance_of_{name}", chance, LEVEL)
            for name, chance in zip(SETTINGS, adjusted, strict=True)
        ]
    return found


def _letters(text: str) -> list[int]:
    """Counts by place in the alphabet, without the first token."""
    counts = [0] * len(LETTERS[0])
    for index, letter in enumerate(text):
        place = LETTERS[index % len(LETTERS)].find(letter)
        if index and place >= 0:
            counts[place] += 1
    return counts


def _branches(texts: Sequence[str]) -> int:
    """The most different letters that follow one and the same beginning."""
    following: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        for index, letter in enumerate(text):
            following[text[:index]].add(letter)
    return max((len(letters) for letters in following.values()), default=0)


FEATURE = Feature("sampling", observe, checks)
