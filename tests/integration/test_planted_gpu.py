"""Faults planted in GPU kernels, as the harness found them on an H200.

Protects: a wait that is left out and a load above the wait for the kernel ahead are found, with op,
cell and place; whoever reads those records comes to the same verdict, and the gate refuses them.
The trees are written from the kernels of today, so a plant that no longer fits them shows here; the
files beside `write_trees` say what each did on a GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fasttrack.audit import stage
from fasttrack.audit.toolchain import Source, Toolchain
from fasttrack.claim import load
from fasttrack.cli.main import main
from fasttrack.errors import EXIT_FAIL
from fasttrack.rules.hoist import finding_among
from fasttrack.schema import State
from fasttrack.verify.steps import verify

PLANTS = Path(__file__).parents[1] / "plants" / "kernels"
sys.path.append(str(PLANTS))

import write_trees  # noqa: E402

CELL = "experts/experts=24/padding=0/batch=8"
FINALIZE = "compiled/experts.finalize/sm_90a"
FOUND = {
    "exchange_without_wait": {CELL: ("NUM-NONFINITE", "first at row=0,column=0")},
    "stage_left_without_fence": {CELL: ("NUM-REPEAT", "experts.y seed 0: 300 of 300 repeats")},
    "early_load": {
        CELL: ("NUM-CAP", "element row=4,column=1300"),
        FINALIZE: ("HOIST-EARLY-LOAD", "from parameter slots"),
    },
}
"""Cells that fail, with the reason and a part of what is said; every other one passes."""


@pytest.mark.parametrize("plant", sorted(FOUND))
def test_the_records_of_a_planted_kernel_refute_it(plant: str) -> None:
    found = verify(PLANTS / f"{plant}.ftb")
    assert found.claim.name == f"planted-{plant.replace('_', '-')}"
    assert found.outcome.state is State.FAIL
    judged = [v for v in found.verdicts if v.rule in ("numerics", "hoist")]
    failed = {v.cell: (v.reason, v.detail) for v in judged if v.state is not State.PASS}
    assert {CELL, FINALIZE, "compiled/experts.64/sm_90a"} == {v.cell for v in judged}
    assert failed.keys() == FOUND[plant].keys()
    for cell, (reason, told) in FOUND[plant].items():
        assert failed[cell][0] == reason and told in failed[cell][1], failed[cell]


@pytest.mark.parametrize("plant", sorted(FOUND))
def test_the_gate_refuses_it(plant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", str(PLANTS / f"{plant}.ftb")]) == EXIT_FAIL
    assert "GAT-010 the outcome is FAIL" in capsys.readouterr().err


def test_every_plant_fits_the_kernels_of_today(repo: Path, tmp_path: Path) -> None:
    assert sorted(write_trees.PLANTS) == sorted(FOUND)
    for plant in write_trees.PLANTS:
        claim = load(write_trees.write(plant, repo, tmp_path / plant)).claim
        assert claim.scope.ops == ("experts",)


@pytest.mark.slow
@pytest.mark.cute
@pytest.mark.timeout(300)
def test_the_audit_finds_the_early_load_without_a_gpu(
    cute: Path, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = load(write_trees.write("early_load", repo, tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "optimizations"))
    plugin = frozen.claim.plugin
    source = Source(plugin.distribution, plugin.compiled_kernels, frozen.folder)
    records = list(stage.audit(source, Toolchain(), "compiled/*/sm_90a"))
    own = [record for record in records if record.control is None]
    assert {record.cell: finding_among(record, records)[1] for record in own} == {
        FINALIZE: "HOIST-EARLY-LOAD",
        "compiled/experts.64/sm_90a": "OK",
    }
