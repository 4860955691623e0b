"""Benchmarks of an engine: what is kept of a failure, and when they go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kimi_k3.bench.findings import Findings, answer


def fails(text: str, kind: type[Exception] = RuntimeError) -> Any:
    raise kind(text)


def test_one_rank_that_fails_is_a_failure_whatever_the_first_one_says() -> None:
    """Else graphs of two ranks that do not match would be timed against each other."""
    with pytest.raises(RuntimeError, match="bench_check on 1 of 2 ranks: no kernel"):
        answer("bench_check", [{"found": 1}, {"failed": "no kernel for 3 rows"}])
    assert answer("bench_check", [{"found": 1}, {"found": 2}]) == 1


def test_what_a_worker_could_not_do_is_kept_and_the_rest_goes_on(tmp_path: Path) -> None:
    findings = Findings(str(tmp_path / "found.json"))
    findings.piece("ops 3", fails, "no kernel for 3 rows")
    assert findings.piece("ops 4", lambda: 4) == 4
    kept = json.loads((tmp_path / "found.json").read_text())
    assert "no kernel for 3 rows" in kept["ops 3"]
    assert kept["ops 4"] == 4


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Worker failed with error 'CUDA error: an illegal memory access'", RuntimeError),
        ("RPC call to bench timed out.", TimeoutError),
    ],
)
def test_a_lost_device_ends_the_run_once_the_finding_is_kept(
    tmp_path: Path, text: str, kind: type[Exception]
) -> None:
    """Without it the next question to the ranks waits without end, and what was found is lost with
    the time."""
    findings = Findings(str(tmp_path / "found.json"))
    with pytest.raises(SystemExit, match="greedy stock failed"):
        findings.piece("greedy stock", fails, text, kind)
    assert text in json.loads((tmp_path / "found.json").read_text())["greedy stock"]
