"""Protects the run folder: units appear whole or not at all, in one order, for one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fasttrack.bundle.writer import RunFolder
from fasttrack.errors import RunError
from fasttrack.schema import Check, FailureRecord, FeatureRecord, IsolationRecord, Record


def feature(name: str) -> FeatureRecord:
    check = Check(name="works", relation="equal", observed=True, bound=True)
    return FeatureRecord(feature=name, arm="base", status="observed", checks=(check,))


def failure(unit: str) -> FailureRecord:
    return FailureRecord(
        stage="features", unit=unit, code="ENG-003", cause="killed by signal 9", next="repeat"
    )


def test_units_are_there_when_finished(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run") as run:
        assert not run.has_unit("features", "base-01")
        run.write_unit("features", "base-01", [feature("logprobs"), feature("sampling")])
        assert run.has_unit("features", "base-01")
        assert [r.feature for r in run.records("features")] == ["logprobs", "sampling"]


def test_interrupted_unit_leaves_nothing(tmp_path: Path) -> None:
    def cut() -> Iterator[Record]:
        yield feature("logprobs")
        raise KeyboardInterrupt

    with RunFolder.open(tmp_path / "run") as run:
        with pytest.raises(KeyboardInterrupt):
            run.write_unit("features", "base-01", cut())
        assert not run.has_unit("features", "base-01")
        assert list((tmp_path / "run" / "features").iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "run" / "perf").mkdir(parents=True)
    leftover = tmp_path / "run" / "perf" / ".writing-abc"
    leftover.write_bytes(b"half a rec")
    RunFolder.open(tmp_path / "run").close()
    assert not leftover.exists()


def test_failures_are_kept_and_are_records(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run") as run:
        run.append_failure(failure("base-01"))
        run.append_failure(failure("base-02"))
        assert [r.unit for r in run.records() if r.kind == "failure"] == ["base-01", "base-02"]


def test_records_come_by_stage_then_name(tmp_path: Path) -> None:
    isolation = IsolationRecord(subject="scope", checks=feature("x").checks)
    with RunFolder.open(tmp_path / "run") as run:
        run.write_unit("features", "b-01", [feature("second")])
        run.write_unit("features", "a-01", [feature("first")])
        run.write_unit("isolation", "z-01", [isolation])
        kinds = [(r.kind, getattr(r, "feature", "")) for r in run.records()]
    assert kinds == [("isolation", ""), ("feature", "first"), ("feature", "second")]


def test_second_process_is_turned_away_and_told_who_holds_it(tmp_path: Path) -> None:
    held = (
        "import sys, time; from pathlib import Path\n"
        "from fasttrack.bundle.writer import RunFolder\n"
        "RunFolder.open(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", held, str(tmp_path / "run")], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(RunError) as caught:
            RunFolder.open(tmp_path / "run")
        assert caught.value.code == "RUN-002"
        assert str(process.pid) in caught.value.cause
    finally:
        process.kill()
        process.wait(timeout=30)
    RunFolder.open(tmp_path / "run").close()


@pytest.mark.parametrize(
    "damage", [b'{"kind":"feature"}\n', b'{"kind":', b"\n", b'{"kind":"feature","kind":"item"}\n']
)
def test_damaged_file_is_named(tmp_path: Path, damage: bytes) -> None:
    with RunFolder.open(tmp_path / "run") as run:
        run.write_unit("features", "a-01", [feature("fine")])
        run.write_bytes("features/b-01.jsonl", damage)
        with pytest.raises(RunError) as caught:
            list(run.records())
    assert caught.value.code == "RUN-003"
    assert caught.value.cell == "features/b-01.jsonl"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a//b", "a/../b", ".hidden", "a\\b", "é", ""])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with RunFolder.open(tmp_path / "run") as run, pytest.raises(ValueError, match="path"):
        run.write_bytes(name, b"")


def test_unit_named_like_the_failure_list_is_refused(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path / "run") as run, pytest.raises(ValueError, match="failures"):
        run.write_unit("features", "failures", [])
