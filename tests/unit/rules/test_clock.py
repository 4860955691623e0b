"""Protects step times: an engine whose steps do not add up to our own clock is not believed."""

from __future__ import annotations

from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.rules import validity
from fasttrack.schema import EngineStep, SampleRecord

CLAIM = zoo.claim()
REAL = CLAIM.model_copy(
    update={
        "targets": {
            name: target.model_copy(update={"engine": "vllm"})
            for name, target in CLAIM.targets.items()
        }
    }
)


CELL = CLAIM.cells("lab")[0]


def sample(call_s: float | None, *durations: float) -> SampleRecord:
    """A sample of consecutive steps."""
    steps, clock = [], 0.0
    for duration in durations:
        steps.append(
            EngineStep(start_s=clock, duration_s=duration, decode_tokens=1, prefill_tokens=0)
        )
        clock += duration
    made: Any = zoo.sample(CELL, "base", "perf-b0-0-base", 0, 0, steps, call_s=call_s)
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize(("call_s", "says"), [
    (1.0, ""), (1.9, ""), (0.995, ""),
    (2.1, "steps of 1 s in a call of 2.1 s"),
    (0.9, "steps of 1 s in a call of 0.9 s"),
    (None, "was not read"),
])  # fmt: skip
def test_steps_account_for_the_call(call_s: float | None, says: str) -> None:
    told = validity.clock_problem(sample(call_s, 0.5, 0.25, 0.25), CELL, zoo.case([], REAL))
    assert (says in told) if says else told == ""


def test_two_entries_of_one_step_count_once() -> None:
    one = sample(1.0, 0.5, 0.5)
    twice = one.model_copy(update={"steps": (*one.steps, one.steps[-1])})
    assert validity.clock_problem(twice, CELL, zoo.case([], REAL)) == ""


def marked(took: float, **changes: Any) -> str:
    """What is said of steps of 16 x 0.05 s, the last 12 of which took `took` on our clock."""
    made = sample(0.9, *[0.05] * 16)
    marks = [(4, 7.0), (16, 7.0 + took)]
    made = made.model_copy(update={"marks": marks} | changes)
    return validity.clock_problem(made, CELL, zoo.case([], REAL))


@pytest.mark.parametrize("took", [0.59, 0.6, 0.61, 0.79])
def test_the_window_took_as_long_on_our_clock(took: float) -> None:
    assert marked(took) == ""


@pytest.mark.parametrize("took", [0.3, 0.54, 0.81, 5.0])
def test_work_hidden_between_the_steps_of_the_window_shows(took: float) -> None:
    assert "12 steps of 0.6 s in" in marked(took)


def test_a_window_without_marks_is_not_believed() -> None:
    assert "around the window" in marked(0.6, marks=())


def test_a_simulated_clock_is_not_compared() -> None:
    assert validity.clock_problem(sample(None, 0.5), CELL, zoo.case([], CLAIM)) == ""
