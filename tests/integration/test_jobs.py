"""Protects `--jobs`: engines of all stages but perf run beside each other and leave what they would
leave alone, in the order that their records ask for; one that fails or Ctrl-C stops the others, and
nothing that was finished is measured again."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import fasttrack, optimization, records, run_folders, unit_files

from fasttrack.engine import base
from fasttrack.perf import nvml
from fasttrack.schema import FailureRecord, SessionRecord

COMMAND = ("validate", "demo", "--skip", "kernels", "--skip", "perf", "--json")
JOBS = (*COMMAND, "--jobs", "3")
CLOCKS = ("started_utc", "start_s", "ready_s", "end_s", "peak_rss_mib")


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def told(run: Path) -> dict[str, list[Any]]:
    """All records of a run by file, without what clocks and memory say."""
    found = {}
    for name in unit_files(run):
        values = [json.loads(line) for line in (run / name).read_bytes().splitlines()]
        for value in values:
            if value["kind"] == "session":
                for key in CLOCKS:
                    value.pop(key, None)
        found[name] = values
    return found


def sessions(run: Path) -> list[SessionRecord]:
    return [
        record
        for stage in ("path", "features", "evals")
        for record in records(run, f"{stage}/")
        if isinstance(record, SessionRecord)
    ]


def overlapping(found: list[SessionRecord]) -> set[frozenset[str]]:
    return {
        frozenset((one.session, other.session))
        for one in found
        for other in found
        if one is not other and one.start_s < other.end_s and other.start_s < one.end_s
    }


def verdicts(run: Path) -> Any:
    return json.loads((run / "verdicts.json").read_bytes())["verdicts"]


def running(folder: Path) -> list[str]:
    """Fake engines whose logs are below a folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes()
            log = os.readlink(process / "fd" / "1")
        except OSError:
            continue
        if b"_fake_child" in words and log.startswith(str(folder)):
            found.append(process.name)
    return found


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """It is heard here, also where whoever started the tests does not listen to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_records_and_verdicts_are_those_of_engines_that_run_alone(tmp_path: Path) -> None:
    for name in ("alone", "beside"):
        (tmp_path / name).mkdir()
        optimization(tmp_path / name)
    alone = fasttrack(tmp_path / "alone", *COMMAND)
    ran = fasttrack(tmp_path / "beside", *JOBS)
    assert (alone.status, ran.status) == (0, 0), ran.err
    (one,), (other,) = run_folders(tmp_path / "alone"), run_folders(tmp_path / "beside")
    assert one.name == other.name  # neighbours change no number, so they are the same run
    assert told(one) == told(other)
    assert verdicts(one) == verdicts(other)
    assert not overlapping(sessions(one))
    pairs = overlapping(sessions(other))
    assert pairs and not any("path-" in name for pair in pairs for name in pair)
    assert fasttrack(tmp_path / "beside", "verify", ran.json["bundle"]).status == 0
    assert "Beside each other" in fasttrack(tmp_path / "beside", "report", ran.json["bundle"]).out
    assert (
        "Beside each other" not in fasttrack(tmp_path / "alone", "report", alone.json["bundle"]).out
    )
    assert "isolation, path, features, evals: 8 units, 3 at once" in ran.err
    # The names of logs are those of a run without neighbours: none is written by two.
    logs = sorted(path.relative_to(other).as_posix() for path in (other / "logs").rglob("*.log"))
    assert logs == sorted(
        path.relative_to(one).as_posix() for path in (one / "logs").rglob("*.log")
    )
    assert not running(tmp_path)


def test_engines_are_dealt_gpus_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization(tmp_path)
    monkeypatch.setattr(nvml, "count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    boot = base.Engine.boot
    few = (*JOBS, "--skip", "isolation", "--skip", "features")

    def noted(engine: base.Engine, launch: base.Launch) -> base.Boot:
        with (tmp_path / "given").open("a") as file:
            file.write(f"{launch.session} {launch.env['CUDA_VISIBLE_DEVICES']}\n")
        return boot(engine, launch)

    monkeypatch.setattr(base.Engine, "boot", noted)
    ran = fasttrack(tmp_path, *few)
    assert ran.status == 0, ran.err
    assert "2 of 3 engines at once: each needs 1 of 2 GPUs" in ran.err
    given = dict(line.split() for line in (tmp_path / "given").read_text().splitlines())
    assert {given["path-base"], given["path-candidate"]} == {"0", "1"}
    assert set(given.values()) == {"0", "1"}
    (run,) = run_folders(tmp_path)
    for pair in overlapping(sessions(run)):
        assert len({given[name] for name in pair}) == 2


def test_one_that_fails_stops_the_others_and_keeps_what_was_finished(tmp_path: Path) -> None:
    optimization(tmp_path, fault="die")
    ran = fasttrack(tmp_path, *JOBS)
    assert (ran.status, ran.error["code"]) == (5, "ENG-003")
    (run,) = run_folders(tmp_path)
    kept = set(unit_files(run))
    failures = [r for r in records(run, "*/failures") if isinstance(r, FailureRecord)]
    assert [failure.code for failure in failures] == ["ENG-003"]
    assert any("path/base" in name for name in kept)
    assert not any("candidate" in name for name in kept)
    assert not running(tmp_path)


def test_a_run_goes_on_with_another_number_of_jobs(tmp_path: Path, ctrl_c: None) -> None:
    optimization(tmp_path)
    few = ("--skip", "features", "--skip", "evals")

    def interrupt() -> None:
        """As soon as a unit is finished."""
        while not list(tmp_path.glob("runs/*/*/*.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    ran = fasttrack(tmp_path, *JOBS, *few)
    assert (ran.status, ran.error["code"]) == (130, "RUN-001"), ran.err
    assert "Traceback" not in ran.err
    time.sleep(0.2)
    assert not running(tmp_path)
    (run,) = run_folders(tmp_path)
    kept = unit_files(run)
    assert kept
    ran = fasttrack(tmp_path, *COMMAND, *few)
    assert ran.status == 0, ran.err
    assert run_folders(tmp_path) == [run]
    assert {name: unit_files(run)[name] for name in kept} == kept
    assert fasttrack(tmp_path, "verify", ran.json["bundle"]).status == 0
