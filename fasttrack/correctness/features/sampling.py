"""Sampling: temperature, top-k, top-p and min-p draw from the distribution that stock draws from.

Two looks at unseeded draws of both arms, at tokens after the first, which prefill makes:

- support: no token from outside the set that top-k, top-p or min-p leaves, by the model's own
  ranks and log-probabilities;
- distribution: counts of ranks, two-sample G-test per prompt, corrected for draws of one sequence
  (`stats.two_sample_g`), summed over prompts, Holm's correction over the settings. An engine may
  give unseeded requests of both arms the same noise: then the test is on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fasttrack import stats
from fasttrack.correctness.features.probe import Facts, Feature, Probe, at_least, equal
from fasttrack.engine.base import Answer, Request, Sampling
from fasttrack.schema import Check

SETTINGS: dict[str, dict[str, Any]] = {
    "temperature_0.7": {"temperature": 0.7},
    "temperature_1": {"temperature": 1.0},
    "top_k": {"temperature": 1.0, "top_k": 5},
    "top_p": {"temperature": 1.0, "top_p": 0.3},
    "min_p": {"temperature": 1.0, "min_p": 0.3},
}
PROMPTS = 4
SEQUENCES = 16
TOKENS = 10
LISTED = 20
LEVEL = 1e-3
"""Of the whole family of tests."""
BINS = (1, 2, 3, 4, 5, 8, 16, 32, 64)
"""Upper ends of the classes of ranks; a last class holds the rest."""
SLACK = 1e-4
"""Nats, or share of probability, that log-probabilities are uncertain by."""


def observe(probe: Probe) -> Facts:
    """Unseeded sequences, per setting and prompt: how often each class of ranks was drawn."""
    drawn: dict[str, list[list[list[int]]]] = {}
    outside: dict[str, int] = {}
    tokens = 0
    for name, setting in SETTINGS.items():
        sampling = Sampling(max_tokens=TOKENS, n=SEQUENCES, logprobs=LISTED, **setting)
        answers = probe.ask(
            [Request(prompt=probe.prompt(4, salt), sampling=sampling) for salt in range(PROMPTS)]
        )
        lanes = [[answer, *answer.others] for answer in answers]
        drawn[name] = [[_classes(lane) for lane in group] for group in lanes]
        outside[name] = sum(_outside(lane, setting) for group in lanes for lane in group)
        tokens += sum(len(lane.ranks) for group in lanes for lane in group)
    return {"drawn": drawn, "outside": outside, "tokens": tokens}


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    planned = len(SETTINGS) * PROMPTS * SEQUENCES * TOKENS
    found = [
        equal("tokens_drawn", facts["tokens"], planned),
        *(equal(f"outside_{name}", count, 0) for name, count in facts["outside"].items()),
    ]
    if base is not None:
        chances = []
        for name in SETTINGS:
            tests = [
                stats.two_sample_g(mine, yours)
                for mine, yours in zip(facts["drawn"][name], base["drawn"][name], strict=True)
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


def _classes(lane: Answer) -> list[int]:
    """Counts per class of ranks, without the first token."""
    counts = [0] * (len(BINS) + 1)
    for rank in lane.ranks[1:]:
        counts[next((i for i, end in enumerate(BINS) if rank <= end), len(BINS))] += 1
    return counts


def _outside(lane: Answer, setting: dict[str, Any]) -> int:
    """Tokens that the setting should have excluded. All settings that exclude have temperature 1.

    Where the engine listed too few alternatives to tell, a token counts as inside.
    """
    found = 0
    for rank, logprob, best, above in zip(
        lane.ranks, lane.logprobs, lane.best, lane.above, strict=True
    ):
        if logprob is None or best is None:
            found += 1
        elif "top_k" in setting:
            found += rank > setting["top_k"]
        elif "min_p" in setting:
            found += logprob < best + math.log(setting["min_p"]) - SLACK
        elif "top_p" in setting:
            found += above >= setting["top_p"] + SLACK
    return found


FEATURE = Feature("sampling", observe, checks)
