"""A measurement in one call, on a machine that is there for minutes.

Protects what such a call hands out: the bundle and the log where there was time, and where there
was not, what was finished, with the same call going on from there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from fasttrack.cli.main import main

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scaffold, which the fake engine measures."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "demo"]) == 0
    told = tmp_path / "demo" / "claim.toml"
    # 16 boots or more: the run is longer than the first call below, on any machine.
    told.write_text(f"{told.read_text()}\nboot_s = 2\n")
    return tmp_path / "demo"


def _call(repo: Path, claim: Path, seconds: int) -> tuple[int, Path]:
    out = claim.parent / "out"
    told = os.environ | {"PYTHON": sys.executable, "WORK": str(claim.parent / "work")}
    command = ["bash", "benchmarks/one_call.sh", str(claim), "fake", str(out), str(seconds)]
    done = subprocess.run(
        [*command, "--only", "perf", "--tier", "full"], cwd=repo, env=told, capture_output=True,
        timeout=200, check=False,
    )  # fmt: skip
    return done.returncode, out


def test_a_bundle_and_a_log_come_out_and_a_call_cut_short_goes_on(repo: Path, claim: Path) -> None:
    status, out = _call(repo, claim, 60)
    assert status == 130
    assert "RUN-001" in (out / "one_call.log").read_text()
    with tarfile.open(out / "run.tgz") as kept:
        assert any(name.endswith("claim/run.json") for name in kept.getnames())
    status, out = _call(repo, claim, 150)
    assert status == 0
    assert len(list(out.glob("demo-fake-*.ftb"))) == 1
    assert len(list((claim.parent / "work" / "runs").iterdir())) == 1
