"""Protects `--together`: engines of a block that boot at once are measured as if each were alone,
what does not fit together boots alone, GPUs are dealt evenly to both arms, and no engine is left
behind.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import fasttrack, optimization, records, run_folders, unit_files

from fasttrack.engine import base
from fasttrack.engine.base import Session
from fasttrack.errors import RunError
from fasttrack.perf import nvml, sweep
from fasttrack.schema import SampleRecord, SessionRecord

COMMAND = ("validate", "demo", "--only", "perf", "--json")
TOGETHER = (*COMMAND, "--together", "2")


def verdicts(run: Path) -> Any:
    return json.loads((run / "verdicts.json").read_bytes())["verdicts"]


def sessions(run: Path) -> dict[str, SessionRecord]:
    found = records(run, "perf/block")
    return {r.session: r for r in found if isinstance(r, SessionRecord)}


def alive() -> list[str]:
    """Engines of this process that still run."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == str(os.getpid()) and b"_fake_child" in words:
            found.append(folder.name)
    return found


def test_verdicts_are_those_of_engines_that_boot_alone(tmp_path: Path) -> None:
    optimization(tmp_path)
    alone = fasttrack(tmp_path, *COMMAND)
    ran = fasttrack(tmp_path, *TOGETHER)
    assert (alone.status, ran.status) == (0, 0), ran.err
    one, other = run_folders(tmp_path)  # another way to measure is another run
    assert verdicts(one) == verdicts(other)
    lonely, paired = sorted(
        (sessions(one), sessions(other)), key=lambda found: bool(next(iter(found.values())).beside)
    )
    assert (len(lonely), len(paired)) == (8, 8)
    assert not any(record.beside for record in lonely.values())
    for name, record in paired.items():
        (neighbour,) = record.beside
        assert paired[neighbour].beside == (name,)
        assert record.turn_s is not None and record.turn_s >= record.ready_s
        assert paired[neighbour].ready_s <= record.turn_s  # nobody boots while one is measured
    assert fasttrack(tmp_path, "verify", ran.json["bundle"]).status == 0
    assert "8 sessions, 2 at once" in fasttrack(tmp_path, "report", ran.json["bundle"]).out
    assert not alive()


def test_what_does_not_boot_together_boots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with two engines that are more than the memory holds."""
    optimization(tmp_path)
    running: list[Session] = []
    wait = base.Boot.wait

    def crowded(boot: base.Boot) -> Session:
        if any(one._child.alive for one in running):
            raise RunError("ENG-001", "out of memory", next_step="planted")
        running.append(wait(boot))
        return running[-1]

    monkeypatch.setattr(base.Boot, "wait", crowded)
    ran = fasttrack(tmp_path, *TOGETHER)
    assert ran.status == 0, ran.err
    (run,) = run_folders(tmp_path)
    assert len(sessions(run)) == 8
    assert not any(record.beside for record in sessions(run).values())
    assert fasttrack(tmp_path, "verify", ran.json["bundle"]).status == 0
    assert not alive()


def test_each_arm_is_once_on_each_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optimization(tmp_path)
    monkeypatch.setattr(nvml, "count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    given: dict[str, str] = {}
    boot = base.Engine.boot

    def noted(engine: base.Engine, launch: base.Launch) -> base.Boot:
        given[launch.session] = launch.env["CUDA_VISIBLE_DEVICES"]
        return boot(engine, launch)

    monkeypatch.setattr(base.Engine, "boot", noted)
    assert fasttrack(tmp_path, *TOGETHER).status == 0
    assert len(given) == 8
    for arm in ("base", "candidate"):
        mine = [gpu for name, gpu in given.items() if name.endswith(arm)]
        assert sorted(mine) == ["0", "0", "1", "1"]


def test_a_pair_that_was_interrupted_goes_on_on_the_same_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization(tmp_path)
    monkeypatch.setattr(nvml, "count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    measured: list[tuple[str, tuple[int, ...] | None]] = []
    measure = sweep._measure

    def until(stop: int | None) -> Any:
        def run(setting: Any, spec: Any, boot: sweep.Boot, passages: Any) -> Any:
            if len(measured) == stop:
                raise KeyboardInterrupt
            made = measure(setting, spec, boot, passages)
            measured.append((boot.name, setting.gpus))
            return made

        return run

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "_measure", until(3))
        assert fasttrack(tmp_path, *TOGETHER).status == 130
    assert not alive()
    (run,) = run_folders(tmp_path)
    kept = unit_files(run)
    assert len(kept) == 3
    monkeypatch.setattr(sweep, "_measure", until(None))
    assert fasttrack(tmp_path, *TOGETHER).status == 0
    assert {name: unit_files(run)[name] for name in kept} == kept
    assert [gpus for _, gpus in measured] == [(0,), (1,)] * 4
    assert len({r.session for r in records(run, "perf/block") if isinstance(r, SampleRecord)}) == 8


def test_a_cluster_and_this_machine_are_two_things(tmp_path: Path) -> None:
    optimization(tmp_path)
    ran = fasttrack(tmp_path, *TOGETHER, "--ray", "auto")
    assert (ran.status, ran.error["code"]) == (2, "USE-001")
