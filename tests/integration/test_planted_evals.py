"""Protects what the evals can see: on the real engine an honest path passes every look, and one
head's scale off by 2 %, which changes no answer, does not.

The other faults are in the table of `docs/eval-faults.md`, which the same script measures.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "benchmarks"))
pytest.importorskip("kimi_k3")
eval_faults = pytest.importorskip("eval_faults")
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("preloaded")]


@pytest.mark.timeout(900)
def test_a_head_off_by_two_percent_is_seen_and_an_honest_path_passes(tmp_path: Path) -> None:
    lab = eval_faults.Lab(tmp_path)
    lab.spec = {**lab.spec, "items": 8}
    _, _, honest, fault, _ = eval_faults.table(lab, ["head_scale"])
    assert set(honest.split("|")[2:-1]) == {" - "}, honest
    assert all("replay FAIL" in cell for cell in fault.split("|")[2:-2]), fault
    # No answer changed: accuracy alone would have let it pass.
    assert "accuracy" not in fault


def test_the_table_in_the_docs_names_a_look_for_every_fault() -> None:
    page = (REPO / "docs" / "eval-faults.md").read_text()
    for fault in eval_faults.FAULTS.values():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {fault} |"))
        assert any(word in row for word in ("FAIL", "INFERIOR")), row
