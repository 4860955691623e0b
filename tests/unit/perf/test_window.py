"""Protects the cut of the steady window: by rule, never by look."""

from __future__ import annotations

import random

import pytest

from fasttrack.perf.window import WARM_UP_STEPS, decode_window
from fasttrack.schema import EngineStep


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
    ("shape", "window"),
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
def test_window(shape: list[tuple[int, int]], window: range) -> None:
    found = decode_window(steps(*shape), 4)
    assert (list(found), found.stop) == (list(window), window.stop)


def test_the_window_does_not_depend_on_times() -> None:
    shape = [PREFILL, *[FULL] * 12]
    slow = [step.model_copy(update={"duration_s": i * 9.0}) for i, step in enumerate(steps(*shape))]
    assert decode_window(slow, 4) == decode_window(steps(*shape), 4)


def test_every_step_of_the_window_is_steady() -> None:
    rng = random.Random(0)
    for _ in range(200):
        shape = [rng.choice([FULL, FULL, FULL, PREFILL, MIXED, PART]) for _ in range(40)]
        made = steps(*shape)
        window = decode_window(made, 4)
        assert all(shape[i] == FULL for i in range(window.start - WARM_UP_STEPS, window.stop)
                   if window)  # fmt: skip
