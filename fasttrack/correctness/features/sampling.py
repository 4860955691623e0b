"""Temperature sampling: seeds repeat, seeds differ, top-k 1 is greedy, and draws equal base's.

Arms are compared draw by draw under the same seeds: the engine turns a seed into the same noise in
both arms, so a changed distribution shows as changed tokens, with far more power than counting.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    agree,
    at_least,
    equal,
    greedy,
)
from fasttrack.engine.base import Request, Sampling
from fasttrack.schema import Check

DRAWS = 24
TOKENS = 8
MIN_EQUAL_SHARE = 0.9


def observe(probe: Probe) -> Facts:
    """Seeded draws, the same again, and top-k 1 beside greedy."""
    prompt = probe.prompt(24)

    def draw(seed: int) -> Request:
        sampling = Sampling(
            max_tokens=TOKENS, temperature=0.8, top_p=0.95, seed=probe.seed * 1000 + seed
        )
        return Request(prompt=prompt, sampling=sampling)

    first = probe.ask([draw(seed) for seed in range(DRAWS)])
    again = probe.ask([draw(seed) for seed in range(DRAWS)])
    top, best = probe.ask(
        [
            Request(prompt=prompt, sampling=greedy(TOKENS, temperature=1.0, top_k=1, seed=1)),
            Request(prompt=prompt, sampling=greedy(TOKENS)),
        ]
    )
    return {
        "draws": [list(answer.token_ids) for answer in first],
        "repeated": sum(a.token_ids == b.token_ids for a, b in zip(first, again, strict=True)),
        "distinct": len({answer.token_ids for answer in first}),
        "top_1_is_greedy": agree(best, top),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    found = [
        equal("seeds_repeat", facts["repeated"], DRAWS),
        at_least("seeds_differ", facts["distinct"], 2),
        equal("top_1_is_greedy", facts["top_1_is_greedy"], True),
    ]
    if base is not None:
        same = sum(a == b for a, b in zip(base["draws"], facts["draws"], strict=True))
        found.append(at_least("share_of_draws_as_base", same / DRAWS, MIN_EQUAL_SHARE))
    return found


FEATURE = Feature("sampling", observe, checks)
