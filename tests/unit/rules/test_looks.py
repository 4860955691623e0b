"""Protects the planned looks: looking often finds nothing that is not there, a true gain is found.

Simulated are pairs, judged by the rule's own function; whole sweeps are in `test_speed`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from fasttrack import stats
from fasttrack.rules import looks
from fasttrack.rules.looks import Pair
from fasttrack.schema import Policy, State

sys.path.append(str(Path(__file__).resolve().parents[3] / "docs"))

import power

POLICY = Policy().speed
RUNS = 600


def decide(*logs: float, noise: float = 1e-4, claimed: bool = True) -> looks.Look | None:
    """A decision over pairs, two of a block."""
    pairs = [Pair(index // 2, log) for index, log in enumerate(logs)]
    return looks.decide(pairs, {pair.block: noise for pair in pairs}, POLICY, claimed)


def test_a_gain_of_three_percent_is_found_at_a_noise_of_one_percent() -> None:
    point = power.simulate(3.0, 1.0, runs=RUNS)
    assert point.faster >= 0.95
    assert point.pairs <= 8


def test_a_gain_of_three_percent_is_found_when_each_boot_has_a_noise_of_one_percent() -> None:
    # A pair of boots then has 1.41 %.
    assert power.simulate(3.0, 2**0.5, runs=RUNS).faster >= 0.95


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_equal_arms_are_not_found_to_differ(noise: float, claimed: bool) -> None:
    point = power.simulate(0.0, noise, runs=RUNS, claimed=claimed)
    assert max(point.faster, point.slower) <= POLICY.level


def test_looking_often_without_a_correction_finds_what_is_not_there() -> None:
    # What the correction is for: the same looks at the full level, without a noise floor.
    rng = random.Random(0)
    careless = corrected = 0
    for _ in range(4000):
        logs = [rng.gauss(0, 0.01) for _ in range(12)]
        careless += any(stats.t_interval(logs[:n], 0.05).lower > 0 for n in POLICY.look_pairs)
        corrected += any(
            stats.t_interval(logs[:n], POLICY.look_level).lower > 0 for n in POLICY.look_pairs
        )
    assert careless / 4000 > 0.08
    assert corrected / 4000 <= 0.05


def test_looks_are_made_at_the_planned_pairs_only() -> None:
    assert decide(0.03, 0.031, 0.03) is None
    for count in (4, 5, 6, 7):
        seen = decide(*[0.0, 0.02, -0.005, 0.025, 0.03, 0.03, 0.03][:count])
        assert seen is not None
        assert (seen.number, seen.interval.n, seen.state) == (1, 4, State.INCONCLUSIVE)
        assert not seen.settled


def test_the_first_look_that_decides_is_the_answer() -> None:
    first = decide(*[0.05, 0.051] * 2)
    assert first is not None and first.settled and first.state is State.FASTER
    # What is measured after it changes nothing, not even the noise it was judged by.
    loud = looks.decide(
        [Pair(i // 2, log) for i, log in enumerate([*[0.05, 0.051] * 2, *[-0.9] * 8])],
        {0: 1e-4, 1: 1e-4, 2: 0.5, 3: 0.5},
        POLICY,
        True,
    )
    assert loud == first


def test_a_small_difference_goes_on_while_a_claimed_gain_is_possible() -> None:
    logs = [0.002, 0.012, 0.004, 0.014]
    claimed, other = decide(*logs), decide(*logs, claimed=False)
    assert claimed is not None and other is not None
    assert claimed.state is other.state is State.EQUIVALENT
    assert (claimed.settled, other.settled) == (False, True)
    nothing = decide(0.0, 0.001, -0.001, 0.0)
    assert nothing is not None and nothing.settled


def test_the_last_look_settles() -> None:
    seen = decide(*[-0.1, 0.1] * 6)
    assert seen is not None
    assert (seen.number, seen.state, seen.settled) == (3, State.INCONCLUSIVE, True)


def test_no_noise_floor_no_look() -> None:
    assert looks.decide([Pair(i // 2, 0.1 + i / 999) for i in range(4)], {}, POLICY, True) is None


def test_a_pair_lost_to_an_exclusion_shifts_the_look_to_the_next_block() -> None:
    pairs = [Pair(0, 0.05), Pair(0, 0.051), Pair(1, 0.05), Pair(2, 0.05)]
    noise = {0: 1e-4, 1: 1e-4, 2: 0.02, 3: 9.0}
    seen = looks.decide(pairs, noise, POLICY, True)
    assert seen is not None
    assert seen.floor == pytest.approx(stats.noise_floor([1e-4, 1e-4, 0.02], 4, POLICY.level))
