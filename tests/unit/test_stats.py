"""Protects the numbers behind every verdict: textbook values, and intervals that hold as stated."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack import stats

# Upper quantiles of Student's t as printed in textbooks.
TABLE = [
    (0.05, 1, 6.313752),
    (0.05, 2, 2.919986),
    (0.05, 3, 2.353363),
    (0.05, 7, 1.894579),
    (0.05, 30, 1.697261),
    (0.05, 100000, 1.644869),
    (0.025, 3, 3.182446),
    (0.025, 10, 2.228139),
    (0.01, 5, 3.364930),
    (0.001, 4, 7.173182),
]


@pytest.mark.parametrize(("level", "df", "value"), TABLE)
def test_t_quantiles_are_those_of_the_books(level: float, df: int, value: float) -> None:
    assert stats.t_quantile(level, df) == pytest.approx(value, rel=1e-6)
    assert stats.t_upper_tail(value, df) == pytest.approx(level, rel=1e-5)


@given(st.floats(-50, 50), st.integers(1, 300))
def test_tails_add_up_to_one(t: float, df: int) -> None:
    assert stats.t_upper_tail(t, df) + stats.t_upper_tail(-t, df) == pytest.approx(1.0)


@given(st.floats(1e-6, 0.499), st.integers(1, 300))
def test_quantile_inverts_the_tail(level: float, df: int) -> None:
    assert stats.t_upper_tail(stats.t_quantile(level, df), df) == pytest.approx(level, rel=1e-8)


@pytest.mark.parametrize(("level", "df"), [(0.0, 3), (0.5, 3), (-1.0, 3), (0.05, 0)])
def test_quantile_refuses_what_has_none(level: float, df: int) -> None:
    with pytest.raises(ValueError, match="level must lie"):
        stats.t_quantile(level, df)


@pytest.mark.parametrize(
    ("a", "b", "x", "value"),
    [
        (1.0, 1.0, 0.3, 0.3),
        (2.0, 1.0, 0.5, 0.25),
        (0.5, 0.5, 0.5, 0.5),
        (5.0, 5.0, 0.0, 0.0),
        (5.0, 5.0, 1.0, 1.0),
        (2.0, 3.0, 0.4, 0.5248),
    ],
)
def test_incomplete_beta(a: float, b: float, x: float, value: float) -> None:
    assert stats.incomplete_beta(a, b, x) == pytest.approx(value, rel=1e-12)


def test_centre_and_spread() -> None:
    assert stats.mean([1.0, 2.0, 4.5]) == 2.5
    assert stats.sd([1.0, 2.0, 3.0]) == 1.0
    assert stats.median([3.0, 1.0, 2.0]) == 2.0
    assert stats.median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_summation_does_not_depend_on_order() -> None:
    values = [1e16, 1.0, -1e16, 3.0]
    assert stats.mean(values) == stats.mean(sorted(values)) == 1.0


@pytest.mark.parametrize("function", [stats.mean, stats.median])
def test_nothing_has_no_centre(function: object) -> None:
    with pytest.raises(ValueError, match="of nothing"):
        function([])  # type: ignore[operator]


def test_one_value_has_no_spread() -> None:
    for call in (lambda: stats.sd([1.0]), lambda: stats.sd([])):
        with pytest.raises(ValueError, match="two values"):
            call()
    with pytest.raises(ValueError, match="df be positive"):
        stats.t_interval([1.0], 0.05)


def test_interval_by_hand() -> None:
    interval = stats.t_interval([1.0, 2.0, 3.0, 4.0], 0.05)
    half = 2.353363 * math.sqrt(5 / 3) / 2
    assert interval.estimate == 2.5
    assert interval.lower == pytest.approx(2.5 - half, rel=1e-6)
    assert interval.upper == pytest.approx(2.5 + half, rel=1e-6)
    assert interval.n == 4


def test_bounds_hold_as_often_as_stated() -> None:
    rng = random.Random(1)
    missed = 0
    for _ in range(2000):
        interval = stats.t_interval([rng.gauss(0.0, 1.0) for _ in range(4)], 0.05)
        missed += interval.lower > 0.0
    assert 0.035 < missed / 2000 < 0.065


@pytest.mark.parametrize(
    ("mine", "other", "n", "chance"),
    [
        (0, 0, 12, 1.0),
        (1, 0, 12, 1 / 2),
        (0, 1, 12, 1.0),
        # 4 of 12 against none: C(12, 4) / C(24, 4).
        (4, 0, 12, 495 / 10626),
        (12, 12, 12, 1.0),
        (12, 0, 12, 1 / 2704156),
        # The tea-tasting table with all four cups told apart.
        (4, 0, 4, 1 / 70),
        (3, 1, 4, 17 / 70),
    ],
)
def test_fisher_s_exact_test(mine: int, other: int, n: int, chance: float) -> None:
    assert stats.fisher_upper_tail(mine, other, n) == pytest.approx(chance, rel=1e-12)


@given(st.integers(1, 40), st.data())
def test_more_events_on_this_side_are_never_likelier(n: int, data: st.DataObject) -> None:
    other = data.draw(st.integers(0, n))
    chances = [stats.fisher_upper_tail(mine, other, n) for mine in range(n + 1)]
    assert all(0.0 < chance <= 1.0 + 1e-12 for chance in chances)
    assert all(a >= b - 1e-12 for a, b in pairwise(chances))


def test_noise_floor_by_hand() -> None:
    differences = [0.02, -0.01]
    boot = math.sqrt((0.02**2 + 0.01**2) / 4)
    floor = 2.919986 * boot * math.sqrt(2 / 4)
    assert stats.noise_floor(differences, 4, 0.05) == pytest.approx(floor, rel=1e-6)
    assert stats.noise_floor([0.0, 0.0], 4, 0.05) == 0.0
    with pytest.raises(ValueError, match="two base boots"):
        stats.noise_floor([], 4, 0.05)


@pytest.mark.parametrize(
    ("value", "df", "tail"),
    [  # Abramowitz and Stegun, table 26.8
        (3.84146, 1, 0.05),
        (10.8276, 1, 0.001),
        (18.3070, 10, 0.05),
        (2.15586, 10, 0.995),
        (149.449, 100, 0.001),
        (70.0649, 100, 0.99),
    ],
)
def test_chi_squared_tail_is_that_of_the_tables(value: float, df: int, tail: float) -> None:
    assert stats.chi_squared_upper_tail(value, df) == pytest.approx(tail, rel=1e-4)
    assert stats.chi_squared_upper_tail(0.0, df) == stats.chi_squared_upper_tail(value, 0) == 1.0


def lanes(
    rng: random.Random, weights: Sequence[float], count: int = 60, draws: int = 9, sticky: float = 0
) -> list[list[int]]:
    """Sequences as counts per class; a draw repeats the one before with chance `sticky`."""
    made = []
    for _ in range(count):
        counts, last = [0] * len(weights), None
        for _ in range(draws):
            if last is None or rng.random() >= sticky:
                (last,) = rng.choices(range(len(weights)), weights)
            counts[last] += 1
        made.append(counts)
    return made


FLAT = (5, 4, 3, 2, 2, 1, 1, 1)


@pytest.mark.parametrize("sticky", [0.0, 0.6])
def test_equal_distributions_are_rejected_as_often_as_the_level_says(sticky: float) -> None:
    rng = random.Random(11)
    chances = []
    for _ in range(300):
        test = stats.two_sample_g(lanes(rng, FLAT, sticky=sticky), lanes(rng, FLAT, sticky=sticky))
        chances.append(stats.chi_squared_upper_tail(test.statistic, test.df))
    assert sum(chance < 0.05 for chance in chances) <= 30
    assert sum(chance < 0.5 for chance in chances) >= 90  # and not by never rejecting


def test_another_distribution_is_seen() -> None:
    rng = random.Random(12)
    other = (4, 3, 3, 3, 3, 2, 2, 2)
    test = stats.two_sample_g(lanes(rng, FLAT, 100), lanes(rng, other, 100))
    assert stats.chi_squared_upper_tail(test.statistic, test.df) < 1e-3


def test_classes_with_few_draws_are_joined() -> None:
    assert stats.two_sample_g([[10, 0, 1, 9]], [[10, 1, 0, 9]]).df == 1
    assert stats.two_sample_g([[3, 1]], [[2, 1]]) == stats.GTest(0.0, 0)
    assert stats.two_sample_g([[20, 20]], [[20, 20]]).statistic == 0.0


def test_holm_multiplies_by_what_is_left() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0]
    assert stats.holm([]) == []


@pytest.mark.parametrize(
    ("harmed", "of", "alarm"),
    [(5, 5, True), (4, 4, False), (7, 8, True), (6, 8, False), (9, 10, True), (10, 12, True),
     (12, 16, True), (11, 16, False), (15, 20, True), (20, 30, True), (26, 40, True)],
)  # fmt: skip
def test_mcnemar_harm_alarms_where_the_binomial_tail_does(
    harmed: int, of: int, alarm: bool
) -> None:
    assert (stats.mcnemar_harm(harmed, of - harmed) <= 0.05) is alarm


def test_mcnemar_harm_of_nothing_is_certain() -> None:
    assert stats.mcnemar_harm(0, 0) == 1.0
    assert stats.mcnemar_harm(5, 0) == 1 / 32


def test_bootstrap_interval_is_student_s_where_that_is_right() -> None:
    values = [math.sin(i * 12.9898) for i in range(120)]
    student, bootstrap = stats.t_interval(values, 0.05), stats.bootstrap_interval(values, 0.05)
    assert bootstrap == stats.bootstrap_interval(values, 0.05)
    assert bootstrap.lower == pytest.approx(student.lower, abs=0.03)
    assert bootstrap.upper == pytest.approx(student.upper, abs=0.03)
    assert stats.bootstrap_interval([2.0] * 5, 0.05) == stats.Interval(2.0, 2.0, 2.0, 5)


def test_pairs_needed_and_rates_unseen() -> None:
    assert [stats.pairs_needed(sd, m) for sd, m in ((0.2, 0.03), (0.3, 0.05), (0.15, 0.02))] == [
        275, 223, 348,
    ]  # fmt: skip
    assert stats.unseen_rate(59, 0.05) == pytest.approx(0.0495, abs=1e-4)
