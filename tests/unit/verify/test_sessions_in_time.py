"""Protects the order of sessions in time: of a timed session only boots of engines that booted with
it may overlap, and nothing runs or boots while it is measured; the others may run beside each
other."""

from __future__ import annotations

from typing import Any

import pytest
from zoo_records._path import session

from fasttrack.schema.record import Stage
from fasttrack.verify import consistency


def one(
    name: str,
    start: float,
    ready: float,
    turn: float | None,
    end: float,
    stage: Stage = "perf",
    **more: Any,
) -> Any:
    """A session by its times."""
    told = {"start_s": start, "ready_s": ready, "turn_s": turn, "end_s": end, **more}
    return session(stage, name, "base").model_copy(update={"session": name, **told})


def test_a_pair_that_boots_together_does_not_disturb_itself() -> None:
    first = one("a", 0, 50, 60, 70, beside=("b",))
    second = one("b", 1, 60, 71, 80, beside=("a",))
    assert not consistency._disturbed(first, second)


@pytest.mark.parametrize(
    ("second", "beside"),
    [
        ((1, 65, 71, 80), ("a",)),  # it still booted while the first was measured
        ((1, 60, 65, 80), ("a",)),  # both were measured at once
        ((1, 60, 71, 80), ()),  # only one of them says so
        ((61, 65, 71, 80), ("a",)),  # it booted inside the other's turn
    ],
)
def test_what_disturbs_is_seen(second: tuple[float, ...], beside: tuple[str, ...]) -> None:
    first = one("a", 0, 50, 60, 70, beside=("b",))
    start, ready, turn, end = second
    other = one("b", start, ready, turn, end, beside=beside)
    assert consistency._disturbed(first, other) and consistency._disturbed(other, first)


def test_sessions_that_follow_each_other_do_not_disturb() -> None:
    assert not consistency._disturbed(one("a", 0, 5, None, 9), one("b", 9.5, 12, None, 20))
    assert consistency._disturbed(one("a", 0, 5, None, 9), one("b", 8, 12, None, 20))


@pytest.mark.parametrize("stage", ["path", "features", "evals"])
def test_stages_without_times_may_run_beside_each_other(stage: Stage) -> None:
    first, second = one("a", 0, 5, None, 9, "features"), one("b", 3, 6, None, 20, stage)
    assert not consistency._disturbed(first, second)


@pytest.mark.parametrize("stage", ["path", "features", "evals"])
def test_none_of_them_runs_beside_a_timed_one(stage: Stage) -> None:
    first, second = one("a", 0, 5, None, 9), one("b", 3, 6, None, 20, stage)
    assert consistency._disturbed(first, second) and consistency._disturbed(second, first)


def test_two_machines_do_not_disturb_each_other_and_boot_nothing_together() -> None:
    """Their monotonic clocks have nothing to do with each other."""
    first = one("a", 0, 5, None, 9, machine="aaaa")
    assert not consistency._disturbed(first, one("b", 1, 6, None, 9, machine="bbbb"))
    linked = one("a", 0, 50, 60, 70, machine="aaaa", beside=("b",))
    other = one("b", 1, 60, 71, 80, machine="bbbb", beside=("a",))
    assert consistency._disturbed(linked, other)
