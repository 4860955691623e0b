"""Protects engines beside each other: who waits for whom, who is given which GPUs, and how few are
at once where there are not enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from fasttrack import claim, scaffold, seats
from fasttrack.engine.setting import Setting
from fasttrack.perf import nvml
from fasttrack.plan import Unit
from fasttrack.schema import Target

EXTERNAL = ("gsm8k", "mrcr")


def unit(stage: Any, name: str, **spec: Any) -> Unit:
    return Unit(stage, f"{name}-0123456789", spec, 4.0 if stage == "features" else 1.0)


NEIGHBOUR = unit("isolation", "neighbour", check="neighbour")
MODEL = unit("isolation", "model", check="model")
ARMS = {
    (stage, arm): unit(stage, arm, arm=arm)
    for stage in ("path", "features", "evals")
    for arm in ("base", "candidate")
}
EXTERNALS = [
    unit("evals", f"{name}-{arm}", arm=arm, external=name)
    for name in EXTERNAL
    for arm in ("base", "candidate")
]
UNITS = (NEIGHBOUR, MODEL, *ARMS.values(), *EXTERNALS)


@dataclass(frozen=True)
class Stub:
    """As much of a setting as is changed for a unit."""

    gpus: tuple[int, ...] | None = None


SETTING = cast(Setting, Stub())


@pytest.fixture
def target(tmp_path: Path) -> Target:
    scaffold.create("demo", tmp_path)
    return next(iter(claim.load(tmp_path / "demo").claim.targets.values()))


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, ())


def given(monkeypatch: pytest.MonkeyPatch, found: tuple[int, ...] | None) -> None:
    monkeypatch.setattr(nvml, "usable", lambda: found)


def needing(target: Target, ranks: int = 1, **arguments: Any) -> Target:
    changes = {"tensor_parallel_size": ranks, "engine_args": {**target.engine_args, **arguments}}
    return target.model_copy(update=changes)


def names(units: Any) -> list[str]:
    return [f"{one.stage}/{one.stem}" for one in units]


def played(room: seats.Seats) -> list[list[str]]:
    """Units that run at once, whoever has run longest ending next."""
    waiting, running, seen = list(room.order), [], []
    while waiting or running:
        for one in list(waiting):
            if room.begin(SETTING, one) is not None:
                waiting.remove(one)
                running.append(one)
        assert running, f"nobody begins of {names(waiting)}"
        seen.append(names(running))
        room.end(running.pop(0))
    return seen


def order(room: seats.Seats) -> list[str]:
    """In which order they begin."""
    return list(dict.fromkeys(name for at_once in played(room) for name in at_once))


def test_what_times_or_boots_nothing_is_not_seated() -> None:
    assert all(map(seats.boots, UNITS))
    for stage, check in (("isolation", "scope"), ("kernels", "compiled"), ("perf", "")):
        assert not seats.boots(unit(stage, "other", check=check))


def test_a_candidate_waits_for_the_base_that_it_is_compared_with(target: Target) -> None:
    for at_once in played(seats.Seats(target, UNITS, 9)):
        for stage in ("features", "evals"):
            assert not {f"{stage}/base", f"{stage}/candidate"} <= set(at_once)
    begun = order(seats.Seats(target, UNITS, 9))
    for stage in ("features", "evals"):
        assert begun.index(f"{stage}/base") < begun.index(f"{stage}/candidate")


def test_a_base_that_is_there_is_waited_for_no_more(target: Target) -> None:
    alone = (ARMS["features", "candidate"], ARMS["evals", "candidate"])
    assert played(seats.Seats(target, alone, 2))[0] == ["features/candidate"]
    assert len(played(seats.Seats(target, alone, 2))) == 2


def test_the_first_engine_of_an_arm_has_no_neighbour_of_that_arm(target: Target) -> None:
    """It fills the caches of compilers, some files of which are not written whole at once."""
    without_path = [one for one in UNITS if one.stage != "path"]
    for units, first in ((UNITS, "path/{}"), (without_path, "isolation/model")):
        for arm in ("base", "candidate"):
            mine = {f"{one.stage}/{one.stem}" for one in units if one.spec.get("arm") == arm}
            mine.add("isolation/model")
            rows = [mine & set(at_once) for at_once in played(seats.Seats(target, units, 9))]
            name = first.format(arm)
            assert next(filter(None, rows)) == {name}
            assert all(row == {name} for row in rows if name in row)


def test_engines_of_an_arm_with_the_target_s_own_configuration_follow_each_other(
    target: Target,
) -> None:
    for at_once in played(seats.Seats(target, UNITS, 9)):
        plain = [name for name in at_once if name == "isolation/model" or "-base" in name]
        assert len(plain) <= 1


def test_the_longest_row_of_units_begins_first(target: Target) -> None:
    begun = order(seats.Seats(target, UNITS, 2))
    assert begun[:2] == ["path/base", "path/candidate"]
    assert begun[2] == "features/base"


def test_without_gpus_path_has_the_machine_to_itself(target: Target) -> None:
    """A step of it is drawn, with its times."""
    room = seats.Seats(target, UNITS, 3)
    assert (room.most, room.why_fewer) == (3, "")
    assert max(map(len, played(room))) == 3
    for at_once in played(seats.Seats(target, UNITS, 3)):
        assert len(at_once) == 1 or not any("path" in name for name in at_once)


def dealt(room: seats.Seats, *units: Unit) -> list[Any]:
    """GPUs of units that are to begin one after the other; "later" for one that cannot."""
    begun = [room.begin(SETTING, one) for one in units]
    return ["later" if own is None else own.gpus for own in begun]


def test_gpus_are_dealt_evenly_and_taken_back(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, (3, 5))
    room = seats.Seats(target, (NEIGHBOUR, *EXTERNALS), 4)
    assert room.most == 2 and "2 of 4 engines at once: each needs 1 of 2 GPUs" in room.why_fewer
    base, candidate = EXTERNALS[:2]
    assert dealt(room, NEIGHBOUR, base, candidate) == [(3,), (5,), "later"]
    room.end(base)
    assert dealt(room, candidate) == [(5,)]
    room.end(NEIGHBOUR)
    assert dealt(room, EXTERNALS[2]) == [(3,)]


def test_engines_share_a_gpu_as_far_as_their_target_says(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, (0,))
    fixed = {"kv_cache_memory_bytes": 2**30}
    assert seats.Seats(target, UNITS, 4).most == 1
    for share, most in ((0.95, 1), (0.5, 1), (0.475, 2), (0.3, 3), (0.1, 4)):
        asked = needing(target, gpu_memory_utilization=share, **fixed)
        assert seats.Seats(asked, UNITS, 4).most == most
    # An engine that looks how much memory is left must not have a neighbour.
    assert seats.Seats(needing(target, gpu_memory_utilization=0.3), UNITS, 4).most == 1


def test_path_shares_no_gpu(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, (0, 1))
    asked = needing(target, gpu_memory_utilization=0.3, kv_cache_memory_bytes=2**30)
    room = seats.Seats(asked, UNITS, 4)
    first, second = ARMS["path", "base"], ARMS["path", "candidate"]
    assert dealt(room, first, second, NEIGHBOUR) == [(0,), (1,), "later"]
    room.end(first)
    assert dealt(room, NEIGHBOUR, ARMS["features", "base"]) == [(0,), (0,)]


def test_engines_of_several_ranks_are_given_so_many_gpus(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, (0, 1, 2, 3, 4))
    room = seats.Seats(needing(target, 2), UNITS, 4)
    assert room.most == 2
    assert dealt(room, ARMS["path", "base"], NEIGHBOUR) == [(0, 1), (2, 3)]
    assert seats.Seats(needing(target, 2, pipeline_parallel_size=2), UNITS, 4).most == 1


def test_too_few_gpus_are_left_to_the_engine_to_refuse(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, (0,))
    room = seats.Seats(needing(target, 2), UNITS, 2)
    assert room.why_fewer == "1 of 2 engines at once: each needs 2 GPUs, there are 1"
    assert dealt(room, NEIGHBOUR, ARMS["path", "base"]) == [None, "later"]


def test_gpus_that_nothing_tells_are_not_shared(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, None)
    room = seats.Seats(target, UNITS, 2)
    assert room.most == 1 and "nothing tells the GPUs by their index" in room.why_fewer


def test_every_unit_has_its_turn(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ((), None, (0,), (0, 1), tuple(range(8))):
        given(monkeypatch, found)
        for jobs in (1, 2, 5):
            for ranks in (1, 2, 4):
                room = seats.Seats(needing(target, ranks), UNITS, jobs)
                assert sorted(order(room)) == sorted(names(UNITS))
                assert (
                    max(map(len, played(seats.Seats(needing(target, ranks), UNITS, jobs)))) <= jobs
                )
