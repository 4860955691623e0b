"""Protects: a numeric fault in one kernel of the bundled path is found, named and located."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
pytest.importorskip("torch")
pytest.importorskip("kimi_k3")


def validate(folder: Path, plant: str | None) -> tuple[int, dict, str]:
    """Exit status, the JSON on stdout and the report of a kernels-only run of one cell."""
    import os

    env = {**os.environ, "PYTHONPATH": str(REPO / "tests" / "plants")}
    env.pop("FASTTRACK_TEST_PLANT", None)
    if plant:
        env["FASTTRACK_TEST_PLANT"] = plant
    done = subprocess.run(
        [sys.executable, "-m", "fasttrack", "validate", str(REPO / "optimizations" / "kimi_k3"),
         "--target", "cpu-nano", "--only", "kernels",
         "--cell", "kda/batch=3/tokens=1/sources=2/padding=0/*",
         "--cache", str(REPO / ".cache"), "--json"],
        cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout)
    report = next(folder.glob("runs/*/report/report.md"), None)
    return done.returncode, told, report.read_text() if report else done.stderr


@pytest.mark.slow
def test_planted_fault_is_named_with_op_cell_and_slice(tmp_path: Path) -> None:
    status, told, report = validate(tmp_path, "kda")
    assert status == 1, report
    found = [item for item in told["open"] if item["cell"].startswith("kda/batch=3")]
    assert found and found[0]["code"] == "NUM-RATIO", told
    # The case runs batches of three one behind the other; the plant is in each one's second row.
    row = re.search(r"kda\.y: .*worst slice row=(\d+)", found[0]["cause"])
    assert row and int(row[1]) % 3 == 1, found[0]["cause"]
    assert "--only kernels" in found[0]["next"]
    assert "kda/batch=3" in report and "row=1" in report.replace("\\", "")


@pytest.mark.slow
def test_without_the_plant_the_same_cell_passes(tmp_path: Path) -> None:
    status, told, report = validate(tmp_path, None)
    assert not [i for i in told["open"] if i["cell"].startswith("kda/batch=3")], report
    assert status in (0, 3), report
