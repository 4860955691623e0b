"""Protects units that run side by side: each leaves what it would leave alone, an error keeps its
code and its cell, a process that dies is told, nobody waits for a unit that is not asked for, and
what a unit has started ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from fasttrack import beside
from fasttrack.engine.setting import Setting
from fasttrack.errors import EnvironmentUnmet, FasttrackError
from fasttrack.plan import Unit
from fasttrack.schema import CodeRecord, Record


@dataclass(frozen=True)
class Stub:
    """As much of a setting as is changed for a unit."""

    logs: Path
    say: Any = print


def unit(name: str, **spec: Any) -> Unit:
    return Unit("kernels", f"{name}-0123456789", {"name": name, **spec}, 1.0)


def runner(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    if spec.get("dies"):
        os._exit(3)
    if spec.get("lacks"):
        raise EnvironmentUnmet("ENV-001", "no torch", next_step="install it", cell="a cell")
    if spec.get("boots"):
        engine = subprocess.Popen(["sleep", "60"], start_new_session=True)
        (setting.logs.parent / "engine").write_text(str(engine.pid))
        try:
            engine.wait()
        finally:
            engine.kill()
            engine.wait()
    time.sleep(spec.get("slow", 0.0))
    files = {"log": setting.logs.name, "process": str(os.getpid())}
    return [CodeRecord(stage="kernels", source=spec["name"], arm="base", files=files)]


def ended(tmp_path: Path, *units: Unit, jobs: int = 2) -> dict[str, beside.Ended]:
    setting = cast(Setting, Stub(tmp_path))
    made = beside.run(setting, units, {"kernels": runner}, beside.AtOnce(jobs))
    return {one.unit.stem: one for one in made}


def test_every_unit_leaves_its_records_and_has_logs_of_its_own(tmp_path: Path) -> None:
    found = ended(tmp_path, *(unit(name) for name in "abcde"))
    assert sorted(found) == list("abcde")
    records = {name: cast(CodeRecord, one.records[0]) for name, one in found.items()}
    assert all(record.source == record.files["log"] == name for name, record in records.items())
    assert str(os.getpid()) not in {record.files["process"] for record in records.values()}


def test_units_overlap_up_to_the_number_asked_for(tmp_path: Path) -> None:
    quick_first = list(ended(tmp_path, unit("slow", slow=0.5), unit("quick")))
    assert quick_first == ["quick", "slow"]
    in_order = list(ended(tmp_path, unit("slow", slow=0.1), unit("quick"), jobs=1))
    assert in_order == ["slow", "quick"]


def test_an_error_keeps_its_kind_code_and_cell(tmp_path: Path) -> None:
    error = ended(tmp_path, unit("a", lacks=True))["a"].error
    assert isinstance(error, EnvironmentUnmet)
    assert (error.code, error.cause, error.cell) == ("ENV-001", "no torch", "a cell")
    assert error.next_step == "install it"


def test_a_process_that_dies_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    found = ended(tmp_path, unit("a", dies=True), unit("b"))
    error = found["a"].error
    assert isinstance(error, FasttrackError) and error.code == "ENG-003"
    assert found["b"].error is None and found["b"].records


def test_units_nobody_asks_for_are_stopped(tmp_path: Path) -> None:
    units = unit("a"), unit("b", slow=60.0)
    start = time.monotonic()
    asked = beside.run(cast(Setting, Stub(tmp_path)), units, {"kernels": runner}, beside.AtOnce(2))
    assert next(asked).unit.stem == "a"
    with pytest.raises(StopIteration):
        asked.close()  # type: ignore[attr-defined]
        next(asked)
    assert time.monotonic() - start < 30


def engine_of(tmp_path: Path) -> int:
    """The process that unit `boots` has started."""
    started = tmp_path / "engine"
    while not started.is_file() or not started.read_text():
        time.sleep(0.01)
    return int(started.read_text())


def gone(process: int) -> bool:
    """Whether a process ends within a while."""
    for _ in range(1000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_a_unit_that_is_stopped_takes_its_engine_along(tmp_path: Path) -> None:
    asked = beside.run(
        cast(Setting, Stub(tmp_path)),
        (unit("boots", boots=True), unit("b", slow=0.5)),
        {"kernels": runner},
        beside.AtOnce(2),
    )
    assert next(asked).unit.stem == "b"
    engine = engine_of(tmp_path)
    asked.close()  # type: ignore[attr-defined]
    assert gone(engine)


def test_a_unit_does_not_outlive_its_run(tmp_path: Path) -> None:
    """Killed, a run can stop nobody: its units must see it."""
    code = (
        f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"
        "import test_beside as t; from pathlib import Path\n"
        f"t.ended(Path({str(tmp_path)!r}), t.unit('a', boots=True), t.unit('b', slow=60))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as run:
        engine = engine_of(tmp_path)
        run.send_signal(signal.SIGKILL)
    assert gone(engine)


def test_a_room_without_a_place_is_no_endless_wait(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no place for a"):
        ended(tmp_path, unit("a"), jobs=0)
