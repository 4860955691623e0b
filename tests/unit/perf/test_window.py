"""Protects the cut of the steady window: by rule, never by look."""

from __future__ import annotations

import random

import pytest

from fasttrack.perf.window import (
    WARM_UP_STEPS,
    cost_s,
    decode_window,
    mixed_window,
    prefill_rounds,
    window,
)
from fasttrack.schema import Cell, EngineStep


def steps(*shape: tuple[int, int]) -> list[EngineStep]:
    """Steps of (decode, prefill) tokens."""
    return [
        EngineStep(start_s=float(i), duration_s=1.0, decode_tokens=d, prefill_tokens=p)
        for i, (d, p) in enumerate(shape)
    ]


FULL, PREFILL, MIXED, PART = (4, 0), (0, 64), (3, 16), (3, 0)
BESIDE = (4, 16)
"""All lanes decode, and somebody else's prompt is prefilled."""


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ([], range(0)),
        ([PREFILL], range(0)),
        ([FULL] * 2, range(2, 2)),
        ([FULL] * 3, range(3, 3)),
        ([FULL] * 5, range(3, 5)),
        ([PREFILL, MIXED, *[FULL] * 10, PART], range(5, 12)),
        ([*[FULL] * 5, PREFILL, *[FULL] * 9, MIXED, *[FULL] * 4], range(9, 15)),
        ([*[FULL] * 6, PREFILL, *[FULL] * 6], range(3, 6)),
        ([PART] * 20, range(0)),
        ([*[FULL] * 6, BESIDE, *[FULL] * 4], range(3, 6)),
    ],
)
def test_window(shape: list[tuple[int, int]], wanted: range) -> None:
    found = decode_window(steps(*shape), 4)
    assert (list(found), found.stop) == (list(wanted), wanted.stop)


def test_the_window_does_not_depend_on_times() -> None:
    shape = [PREFILL, *[FULL] * 12]
    slow = [step.model_copy(update={"duration_s": i * 9.0}) for i, step in enumerate(steps(*shape))]
    assert decode_window(slow, 4) == decode_window(steps(*shape), 4)


def test_every_step_of_the_window_is_steady() -> None:
    rng = random.Random(0)
    for _ in range(200):
        shape = [rng.choice([FULL, FULL, FULL, PREFILL, MIXED, PART]) for _ in range(40)]
        made = steps(*shape)
        found = decode_window(made, 4)
        assert all(shape[i] == FULL for i in range(found.start - WARM_UP_STEPS, found.stop)
                   if found)  # fmt: skip


# Other workloads

BOTH = (4, 16)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ([], range(0)),
        ([PREFILL, *[FULL] * 9], range(0)),
        ([PREFILL, *[FULL] * 4, BOTH, FULL, BOTH, FULL, FULL], range(4, 8)),
        ([PREFILL, *[FULL] * 4, MIXED, BOTH, PART], range(4, 7)),
        ([*[FULL] * 2, BOTH], range(0)),
    ],
)
def test_mixed_window(shape: list[tuple[int, int]], wanted: range) -> None:
    found = mixed_window(steps(*shape), 4)
    assert (list(found), found.stop) == (list(wanted), wanted.stop)


def test_rounds_of_prefill() -> None:
    made = steps((0, 64), (0, 64), (0, 100), (0, 28), (0, 128), (0, 5))
    assert prefill_rounds(made, 128) == [range(0, 2), range(2, 4), range(4, 5)]
    assert prefill_rounds(made, 1000) == []


def test_prefill_costs_what_the_median_round_does_after_the_first() -> None:
    cell = Cell(workload="prefill", batch=2, context_tokens=64)
    made = [
        step.model_copy(update={"duration_s": seconds})
        for step, seconds in zip(steps(*[(0, 128)] * 4), (9.0, 1.0, 3.0, 2.0), strict=True)
    ]
    assert cost_s(made, cell) == pytest.approx(2.0 / 128)
    assert list(window(made, cell)) == [1, 2, 3]


def test_nothing_costs_nothing_knowable() -> None:
    for workload in ("decode", "prefill", "mixed"):
        with pytest.raises(ValueError):
            cost_s([], Cell(workload=workload, batch=2, context_tokens=64))
