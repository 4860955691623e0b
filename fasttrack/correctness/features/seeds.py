"""Seeds: the same seed repeats, others differ, and draws under equal seeds equal base's.

The engine turns a seed into the same noise in both arms, so a changed distribution shows as changed
draws. How many draws change by rounding alone is seen in base, in another batch composition.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack import stats
from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    at_least,
    drawn,
    equal,
    greedy,
)
from fasttrack.engine.base import Request
from fasttrack.schema import Check

DRAWS = 24
TOKENS = 8
LEVEL = 1e-3
"""Of the one-sided Fisher test that more draws part from base than base's own do."""


def observe(probe: Probe) -> Facts:
    """Seeded draws, the same again, the same in halves, and top-k 1 beside greedy."""
    prompt = probe.prompt(24)

    def draw(seed: int) -> Request:
        sampling = drawn(TOKENS, temperature=1.5, top_p=0.95, seed=probe.seed * 1000 + seed)
        return Request(prompt=prompt, sampling=sampling)

    asked = [draw(seed) for seed in range(DRAWS)]
    first, again = probe.ask(asked), probe.ask(asked)
    halves = (*probe.ask(asked[: DRAWS // 3]), *probe.ask(asked[DRAWS // 3 :]))
    top, best = probe.ask(
        [
            Request(prompt=prompt, sampling=greedy(TOKENS, temperature=1.0, top_k=1, seed=1)),
            Request(prompt=prompt, sampling=greedy(TOKENS)),
        ]
    )
    return {
        "draws": [list(answer.token_ids) for answer in first],
        "repeated": sum(a.token_ids == b.token_ids for a, b in zip(first, again, strict=True)),
        "moved": sum(a.token_ids != b.token_ids for a, b in zip(first, halves, strict=True)),
        "distinct": len({answer.token_ids for answer in first}),
        "top_1_is_greedy": probe.agree(best, top),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    found = [
        equal("seeds_repeat", facts["repeated"], DRAWS),
        at_least("seeds_differ", facts["distinct"], 2),
        equal("top_1_is_greedy", facts["top_1_is_greedy"], True),
    ]
    if base is not None:
        parted = sum(a != b for a, b in zip(base["draws"], facts["draws"], strict=True))
        chance = stats.fisher_upper_tail(parted, base["moved"], DRAWS)
        found.append(at_least("chance_of_as_many_changed_draws", chance, LEVEL))
    return found


FEATURE = Feature("seeds", observe, checks)
