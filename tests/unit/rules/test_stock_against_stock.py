"""Protects the user from false alarms: twenty runs of stock against stock, none called worse.

Noise as two batch compositions of one engine show it: every number moves a little, with a heavy
tail, and an answer that meets a tie may part there and score otherwise, in either arm alike.
"""

from __future__ import annotations

import math
import random

import pytest
import zoo_records as zoo

from fasttrack.rules import quality
from fasttrack.schema import ItemRecord, State

TOKENS = 48


def run_of_stock(seed: int, items: int) -> list[ItemRecord]:
    """Both arms are base: `items` prompts of 200 to 1800 tokens, one in twenty with a tie."""
    rng = random.Random(seed)
    made = []
    for index in range(items):
        gaps = [rng.uniform(1, 12) for _ in range(TOKENS)]
        tie = rng.randrange(TOKENS) if rng.random() < 0.05 else None
        if tie is not None:
            gaps[tie] = 0.0
        right = float(rng.random() < 0.9)
        for arm in zoo.ARMS:
            for repeat in ("main", "control", "replay"):
                told = [gap + rng.gauss(0, 1e-5) * rng.choice((1, 1, 1, 5)) for gap in gaps]
                tokens, score = list(range(TOKENS)), right
                if tie is not None and repeat != "replay" and rng.random() < 0.5:
                    tokens[tie:] = [900 + place for place in range(tie, TOKENS)]
                    score = float(rng.random() < 0.5)
                made.append(
                    zoo.item(
                        index, arm, repeat, tokens=tokens, gaps=tuple(told), score=score,
                        logprobs=tuple(-math.log1p(math.exp(-gap)) for gap in told),
                        ranks=(1,) * TOKENS, prompt_tokens=200 + 1600 * index // items,
                    )
                )  # fmt: skip
    said = {r.item: r.token_ids for r in made if (r.arm, r.repeat) == ("base", "main")}
    return [
        r.model_copy(update={"token_ids": said[r.item]}) if r.repeat == "replay" else r
        for r in made
    ]


@pytest.mark.parametrize("seed", range(20))
def test_stock_is_not_worse_than_stock(seed: int) -> None:
    verdicts = list(quality.judge(zoo.case(run_of_stock(seed, 64))))
    assert len(verdicts) > 8
    called = [v for v in verdicts if v.state in (State.INFERIOR, State.FAIL)]
    assert not called, [(v.cell, v.detail) for v in called]
    assert not [v for v in verdicts if v.reason in ("EVAL-ALARM", "EVAL-WORSE")]
