"""Protects work already done: an interrupted run goes on where it stopped, with the same command; a
change of anything that decides its numbers begins another run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import fasttrack, optimization, records, run_folders, unit_files

from fasttrack import pipeline, timings
from fasttrack.bundle import provenance
from fasttrack.bundle.writer import RunFolder
from fasttrack.errors import RunError
from fasttrack.schema import FailureRecord, SessionRecord

COMMAND = ("validate", "demo", "--only", "isolation", "--only", "features", "--only", "evals")
UNITS = 7


def counted(
    monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None, error: BaseException | None = None
) -> list[str]:
    """Names of the units measured from now on; the unit `stop_at` raises instead."""
    done: list[str] = []

    def counting(stage: str, runner: Callable[..., Any]) -> Callable[..., Any]:
        def run(setting: Any, spec: Any) -> Any:
            if len(done) == stop_at:
                raise error or KeyboardInterrupt
            made = runner(setting, spec)
            done.append(f"{stage}/{spec.get('arm') or spec.get('check')}")
            return made

        return run

    wrapped = {stage: counting(stage, runner) for stage, runner in pipeline.RUNNERS.items()}
    monkeypatch.setattr(pipeline, "RUNNERS", wrapped)
    return done


def test_ctrl_c_leaves_a_run_that_the_same_command_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization(tmp_path)
    with monkeypatch.context() as patch:
        counted(patch, stop_at=3)
        ran = fasttrack(tmp_path, *COMMAND, "--json")
    assert ran.status == 130
    assert ran.error["code"] == "RUN-001"
    assert ran.error["next"] == f"fasttrack {' '.join(COMMAND)} --json"
    assert "Traceback" not in ran.err
    (run,) = run_folders(tmp_path)
    kept = unit_files(run)
    assert len(kept) == 3
    assert not (tmp_path / "submissions").exists()

    with monkeypatch.context() as patch:
        done = counted(patch)
        ran = fasttrack(tmp_path, *COMMAND, "--json")
    assert ran.status == 0, ran.err
    assert f"{UNITS} units of work, 3 of them already there" in ran.err
    assert done == ["features/base", "features/candidate", "evals/base", "evals/candidate"]
    assert run_folders(tmp_path) == [run]
    assert {name: unit_files(run)[name] for name in kept} == kept
    # The time the run began is that of its first attempt.
    info = json.loads((run / "claim" / "run.json").read_bytes())
    assert info["run_id"] == run.name
    assert fasttrack(tmp_path, "verify", ran.json["bundle"]).status == 0


def test_a_crash_nobody_foresaw_keeps_what_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization(tmp_path)
    with monkeypatch.context() as patch:
        counted(patch, stop_at=2, error=ZeroDivisionError("planted"))
        ran = fasttrack(tmp_path, *COMMAND, "--json")
    assert (ran.status, ran.error["code"]) == (5, "INT-001")
    assert "ZeroDivisionError: planted" in ran.error["cause"]
    assert "Traceback" not in ran.err
    (run,) = run_folders(tmp_path)
    assert len(unit_files(run)) == 2
    with monkeypatch.context() as patch:
        done = counted(patch)
        assert fasttrack(tmp_path, *COMMAND).status == 0
    assert len(done) == UNITS - 2


def test_the_time_ahead_is_what_earlier_runs_took(tmp_path: Path) -> None:
    optimization(tmp_path)
    command = ("validate", "demo", "--only", "isolation")
    assert fasttrack(tmp_path, *command).status == 0
    noted = tmp_path / ".fasttrack" / timings.NAME
    slow = [json.loads(line) | {"took_s": 600.0} for line in noted.read_text().splitlines()]
    noted.write_text("".join(json.dumps(line) + "\n" for line in slow))
    ran = fasttrack(tmp_path, *command, "--seed", 1)
    assert "3 units of work; about 30 min 00 s" in ran.err


@pytest.mark.parametrize("change", ["source", "claim", "seed", "policy"])
def test_another_run_begins_when_what_decides_its_numbers_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    folder = optimization(tmp_path)
    command: tuple[Any, ...] = ("validate", "demo", "--only", "isolation")
    counted(monkeypatch, stop_at=1)
    assert fasttrack(tmp_path, *command).status == 130
    assert fasttrack(tmp_path, *command).status == 130
    (first,) = run_folders(tmp_path)
    if change == "source":
        (folder / "demo" / "ops.py").write_text("# changed\n")
    elif change == "claim":
        path = folder / "claim.toml"
        path.write_text(path.read_text().replace("max_model_len = 4096", "max_model_len = 2048"))
    elif change == "seed":
        command = (*command, "--seed", 1)
    else:
        (tmp_path / "policy.toml").write_text("version = 2\n")
        command = (*command, "--policy", "policy.toml")
    assert fasttrack(tmp_path, *command).status == 130
    assert len(run_folders(tmp_path)) == 2
    assert unit_files(first)


def test_fresh_throws_an_unfinished_run_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization(tmp_path)
    command = ("validate", "demo", "--only", "isolation", "--fresh")
    done = counted(monkeypatch, stop_at=1)
    assert fasttrack(tmp_path, *command).status == 130
    (run,) = run_folders(tmp_path)
    (run / "mark").touch()
    done.clear()
    assert fasttrack(tmp_path, *command).status == 130
    assert done == ["isolation/scope"]
    assert run_folders(tmp_path) == [run]
    assert not (run / "mark").exists()


def test_fresh_keeps_finished_runs(tmp_path: Path) -> None:
    optimization(tmp_path)
    command = ("validate", "demo", "--only", "isolation", "--fresh")
    assert fasttrack(tmp_path, *command).status == 0
    (first,) = run_folders(tmp_path)
    kept = unit_files(first)
    assert fasttrack(tmp_path, *command).status == 0
    assert len(run_folders(tmp_path)) == 2
    assert unit_files(first) == kept


def test_a_run_inside_the_optimization_s_own_folder_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `fasttrack validate .` writes runs/ beside the sources; they are no change of the sources.
    folder = optimization(tmp_path)
    with monkeypatch.context() as patch:
        counted(patch, stop_at=1)
        assert fasttrack(folder, "validate", ".", "--only", "isolation").status == 130
    ran = fasttrack(folder, "validate", ".", "--only", "isolation", "--json")
    assert ran.status == 0, ran.err
    assert len(run_folders(folder)) == 1
    again = fasttrack(folder, "validate", ".", "--only", "isolation", "--json")
    assert again.json["run"] == f"{ran.json['run']}-2"


def test_two_runs_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimization(tmp_path)
    command = ("validate", "demo", "--only", "isolation", "--json")
    counted(monkeypatch, stop_at=1)
    fasttrack(tmp_path, *command)
    (run,) = run_folders(tmp_path)
    with RunFolder.open(run):
        ran = fasttrack(tmp_path, *command)
    assert (ran.status, ran.error["code"]) == (5, "RUN-002")
    assert "--runs" in ran.error["next"]


def test_a_damaged_record_file_costs_one_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization(tmp_path)
    command = ("validate", "demo", "--only", "features", "--json")
    with monkeypatch.context() as patch:
        counted(patch, stop_at=1)
        assert fasttrack(tmp_path, *command).status == 130
    (run,) = run_folders(tmp_path)
    (name,) = unit_files(run)
    path = run / name
    path.write_bytes(path.read_bytes()[:-10])
    ran = fasttrack(tmp_path, *command)
    assert (ran.status, ran.error["code"]) == (5, "RUN-003")
    assert path.name in ran.error["cause"]
    path.unlink()
    done = counted(monkeypatch)
    assert fasttrack(tmp_path, *command).status == 0
    # It was told before anything was measured.
    assert done == ["features/base", "features/candidate"]


def test_failures_stay_on_record_when_a_later_attempt_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization(tmp_path)
    command = ("validate", "demo", "--only", "features", "--json")
    with monkeypatch.context() as patch:
        counted(patch, stop_at=1, error=RunError("ENG-003", "killed by SIGKILL", cell="x"))
        assert fasttrack(tmp_path, *command).error["code"] == "ENG-003"
    ran = fasttrack(tmp_path, *command)
    assert ran.status == 0
    (failure,) = records(tmp_path / ran.json["run"], "features/failures")
    assert isinstance(failure, FailureRecord)
    assert (failure.code, failure.cell) == ("ENG-003", "x")
    assert "ENG-003" in fasttrack(tmp_path, "report", ran.json["bundle"], "--markdown").out


def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int) -> Any:
    """A perf run that another machine goes on with behind so many sessions; its last call."""
    optimization(tmp_path)
    command = ("validate", "demo", "--only", "perf", "--json")
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "machine_name", lambda: "aaaa")
        counted(patch, stop_at=behind)
        assert fasttrack(tmp_path, *command).status == 130
    monkeypatch.setattr(provenance, "machine_name", lambda: "bbbb")
    return fasttrack(tmp_path, *command)


def machines(tmp_path: Path) -> list[str]:
    """Of the sessions of the one run, in order."""
    (run,) = run_folders(tmp_path)
    found = [r for r in records(run, "perf/block") if isinstance(r, SessionRecord)]
    return [r.machine for r in sorted(found, key=lambda r: r.session)]


@pytest.mark.parametrize(("behind", "kept"), [(2, 2), (3, 2)])
def test_a_run_that_goes_on_elsewhere_says_so_and_measures_whole_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int, kept: int
) -> None:
    ran = moved(tmp_path, monkeypatch, behind)
    assert ran.status == 0, ran.err
    assert f"another machine: {behind} sessions ran on aaaa, the rest runs on bbbb" in " ".join(
        ran.err.split()
    )
    assert machines(tmp_path) == ["aaaa"] * kept + ["bbbb"] * (8 - kept)
    assert fasttrack(tmp_path, "verify", ran.json["bundle"]).status == 0
    page = fasttrack(tmp_path, "report", ran.json["bundle"], "--markdown").out
    assert "Measured on | 2 machines; aaaa: perf-b0-0" in page
    shown = fasttrack(tmp_path, "report", ran.json["bundle"]).out
    assert "Measured on 2 machines; aaaa: perf-b0-0" in shown


def test_a_pair_of_two_machines_is_excluded_and_verification_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_whole_pairs", lambda run, units, machine: None)
    ran = moved(tmp_path, monkeypatch, 3)
    assert "aaaa" in machines(tmp_path) and machines(tmp_path)[2:4] == ["aaaa", "bbbb"]
    (run,) = run_folders(tmp_path)
    verdicts = json.loads((run / "verdicts.json").read_bytes())["verdicts"]
    told = [v["detail"] for v in verdicts if v["rule"] == "speed" and v["cell"] != "sentence"]
    assert told and all("its pair ran on two machines, aaaa and bbbb" in one for one in told)
    assert len(machines(tmp_path)) == 12  # a spare block makes up for the pair
    assert fasttrack(tmp_path, "verify", ran.json["bundle"]).status == 0
