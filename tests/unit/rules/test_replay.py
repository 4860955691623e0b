"""Protects the replay rule: stock's own noise passes, small shifts at any place do not."""

from __future__ import annotations

import math
import random

import pytest
import zoo_records as zoo

from fasttrack.rules import quality, replay
from fasttrack.schema import ItemRecord, State, Verdict

NOISE = 1e-5


def judge(records: list[ItemRecord]) -> dict[str, Verdict]:
    """Replay verdicts of the zoo's eval."""
    return {v.cell: v for v in quality.judge(zoo.case(records)) if "/replay" in v.cell}


def replayed(shift: float = 0.0, after: int = 0, tokens: int = 64) -> list[ItemRecord]:
    """Ten prompts of 500 tokens with noise of stock; from position `after` the candidate's gap is
    off by `shift` nats besides."""
    rng = random.Random(5)
    made = []
    for index in range(10):
        gaps = [rng.uniform(3, 9) for _ in range(tokens)]
        for arm in zoo.ARMS:
            for repeat in ("main", "control", "replay"):
                wide = shift if (arm, repeat) == ("candidate", "replay") else 0.0
                noise = 0.0 if (arm, repeat) == ("base", "main") else NOISE
                told = [
                    gap + rng.gauss(0, noise) + (wide if place >= after else 0.0)
                    for place, gap in enumerate(gaps)
                ]
                made.append(
                    zoo.item(
                        index, arm, repeat, tokens=range(tokens), gaps=tuple(told),
                        logprobs=tuple(-math.log1p(math.exp(-gap)) for gap in told),
                        ranks=(1,) * tokens, prompt_tokens=500,
                    )
                )  # fmt: skip
    return made


def test_stock_s_own_noise_passes() -> None:
    verdicts = judge(replayed())
    assert {v.state for v in verdicts.values()} == {State.PASS}
    assert set(verdicts) == {
        "recall/replay", "recall/replay/context=256-511", "recall/replay/context=512-1023",
    }  # fmt: skip


@pytest.mark.parametrize(("shift", "state"), [(5e-6, State.PASS), (1e-4, State.FAIL)])
def test_a_shift_of_the_gap_shows_where_log_probabilities_do_not(
    shift: float, state: State
) -> None:
    verdict = judge(replayed(shift))["recall/replay"]
    assert verdict.state is state, verdict.detail


@pytest.mark.parametrize(("shift", "state"), [(0.05, State.PASS), (0.5, State.FAIL)])
def test_one_position_may_move_as_far_as_a_tie_of_experts(shift: float, state: State) -> None:
    first = next(r for r in replayed() if (r.arm, r.repeat) == ("candidate", "replay"))
    moved = first.model_copy(update={"gaps": (first.gaps[0] + shift, *first.gaps[1:])})
    verdicts = judge([moved if r == first else r for r in replayed()])
    assert verdicts["recall/replay"].state is state, verdicts["recall/replay"].detail
    assert verdicts["recall/replay/context=256-511"].state is state


def test_drift_is_found_in_the_part_of_the_context_where_it_is() -> None:
    verdicts = judge(replayed(3e-3, after=12))
    assert verdicts["recall/replay/context=256-511"].state is State.PASS
    assert verdicts["recall/replay/context=512-1023"].state is State.FAIL
    assert verdicts["recall/replay/context=512-1023"].reason == "EVAL-DIVERGED"


def test_another_likeliest_token_in_most_sequences_is_found_though_no_number_moves() -> None:
    records = [
        r.model_copy(update={"ranks": (2, *r.ranks[1:])})
        if (r.arm, r.repeat) == ("candidate", "replay")
        else r
        for r in replayed()
    ]
    verdict = judge(records)["recall/replay"]
    assert (verdict.state, verdict.reason) == (State.FAIL, "EVAL-DIVERGED")
    assert "likeliest token" in verdict.detail


def test_kl_of_token_and_rest() -> None:
    assert replay._kl(math.log(0.5), math.log(0.5)) == 0.0
    assert replay._kl(math.log(0.5), math.log(0.25)) == pytest.approx(
        0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    )
    assert replay._kl(-1e-12, -1e-12) == 0.0
    assert replay._kl(0.0, -0.5) == pytest.approx(0.5)
