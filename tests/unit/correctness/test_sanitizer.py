"""Protects what is asked of compute-sanitizer, and how its answers are read; a script plays it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fasttrack.correctness import sanitizer
from fasttrack.engine.setting import Setting
from fasttrack.schema import SanitizerRecord

SCRIPT = """#!/bin/sh
echo "$@" >> {asked}
case "$2" in
  racecheck) echo '========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)';;
  synccheck) exit 1;;
  *) echo '========= ERROR SUMMARY: 0 errors';;
esac
"""


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[SanitizerRecord], str]:
    """Records of an op, and the command lines."""
    asked = tmp_path / "asked"
    program = tmp_path / "compute-sanitizer"
    program.write_text(SCRIPT.format(asked=asked))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    setting: Any = SimpleNamespace(
        claim=SimpleNamespace(plugin=SimpleNamespace(distribution="d", cases="c:cases")),
        folder=tmp_path, logs=tmp_path / "logs", seed=0, timeout_s=20.0, say=lambda text: None,
        engine=SimpleNamespace(env={}),
    )  # fmt: skip
    regimes = [{"batch": 4, "null": 0}, {"batch": 1, "null": 0}]
    records = list(sanitizer.run(cast(Setting, setting), "op", regimes))
    return records, asked.read_text()


def test_every_tool_runs_once_at_the_smallest_regime(
    found: tuple[list[SanitizerRecord], str],
) -> None:
    records, _ = found
    states = {record.tool: record.status for record in records}
    assert states == {
        "memcheck": "clean", "racecheck": "errors", "synccheck": "failed", "initcheck": "clean"
    }  # fmt: skip
    assert {record.regime["batch"] for record in records} == {1}


def test_calls_that_fail_are_no_memory_errors(found: tuple[list[SanitizerRecord], str]) -> None:
    lines = found[1].splitlines()
    asked = {line.split()[1] for line in lines if "--report-api-errors no" in line}
    assert asked == {"memcheck"} and len(lines) == 4
