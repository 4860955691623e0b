"""Protects the device's times: told only where every step has one, and never judged."""

from __future__ import annotations

from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.rules import speed
from fasttrack.schema import Record, SampleRecord, Verdict

CLAIM = zoo.claim(batch=(4,))
GAIN = 1.25


def timed(record: Record, gain: float = GAIN, spoil: bool = False) -> Record:
    """A sample whose device took a millisecond, or less by `gain` in the candidate; prefill steps
    replay no graph."""
    if not isinstance(record, SampleRecord):
        return record
    took = 1e-3 / (gain if record.arm == "candidate" else 1.0)
    times: list[float | None] = [None if s.prefill_tokens else took for s in record.steps]
    if spoil and record.arm == "candidate":
        times[-1] = None
    return record.model_copy(update={"device_s": times})


def verdict(wall: float = 1.0, **how: Any) -> Verdict:
    """Of the one cell, with device times."""
    records = zoo.perf(wall, the_claim=CLAIM, boot_noise=0.0, step_noise=0.0)
    return next(iter(speed.judge(zoo.case([timed(r, **how) for r in records], CLAIM))))


def test_a_gain_that_the_wall_clock_hides_is_told() -> None:
    found = verdict()
    assert found.device_base_ms == pytest.approx(1.0)
    assert found.device_candidate_ms == pytest.approx(1.0 / GAIN)
    assert found.device_estimate == pytest.approx(GAIN)
    assert found.device_lower == pytest.approx(GAIN)
    assert found.device_upper == pytest.approx(GAIN)


def test_it_decides_nothing() -> None:
    plain = next(iter(speed.judge(zoo.case(zoo.perf(1.0, the_claim=CLAIM, boot_noise=0.0,
                                                    step_noise=0.0), CLAIM))))  # fmt: skip
    found = verdict()
    assert (found.state, found.estimate, found.base_ms) == (
        plain.state, plain.estimate, plain.base_ms
    )  # fmt: skip
    assert plain.device_estimate is None


def test_one_step_without_a_time_and_nothing_is_told() -> None:
    assert verdict(spoil=True).device_estimate is None
