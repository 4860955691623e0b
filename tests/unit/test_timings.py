"""Protects the calibration of plans: earlier runs on this machine, and nothing that breaks one."""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo_records as zoo

from fasttrack import plan, timings
from fasttrack.schema import Cell, Claim, Tier


def test_a_stage_is_scaled_by_what_it_took(tmp_path: Path) -> None:
    for took in (2.0, 4.0):
        timings.note(tmp_path, "lab", "perf", "block0-0-base", 1.5, took)
    timings.note(tmp_path, "other", "perf", "block0-0-base", 1.0, 100.0)
    found = timings.calibration(tmp_path, "lab")
    assert found.factor == {"perf": pytest.approx(2.0)}
    assert found.units == {"perf": 2}


def test_a_stage_that_never_ran_goes_by_other_targets(tmp_path: Path) -> None:
    timings.note(tmp_path, "other", "evals", "base", 2.0, 6.0)
    timings.note(tmp_path, "other", "perf", "block0-0-base", 1.0, 100.0)
    timings.note(tmp_path, "lab", "perf", "block0-0-base", 1.0, 2.0)
    found = timings.calibration(tmp_path, "lab")
    assert found.factor == {"evals": pytest.approx(3.0), "perf": pytest.approx(2.0)}
    assert found.units == {"evals": 0, "perf": 1}
    # The unit of another target is not this one's.
    assert found.seconds("evals", "base", 2.0) == pytest.approx(6.0)
    assert ("evals", "base", 2.0) not in found.took_s


def test_old_units_are_forgotten(tmp_path: Path) -> None:
    timings.note(tmp_path, "lab", "evals", "base", 1.0, 1e6)
    for _ in range(timings.LATEST):
        timings.note(tmp_path, "lab", "evals", "base", 1.0, 3.0)
    assert timings.calibration(tmp_path, "lab").factor == {"evals": pytest.approx(3.0)}


def test_no_file_and_spoilt_lines_calibrate_nothing(tmp_path: Path) -> None:
    assert timings.calibration(tmp_path, "lab").factor == {}
    (tmp_path / timings.NAME).write_text(
        'nonsense\n[]\n{"target": "lab"}\n'
        '{"target": "lab", "stage": "perf", "unit": "base", "cost_s": 0.1, "took_s": 5}\n'
    )
    assert timings.calibration(tmp_path, "lab").factor == {}
    timings.note(tmp_path / timings.NAME, "lab", "perf", "base", 1.0, 1.0)  # no folder: no error


def test_a_plan_predicts_what_the_same_run_took(tmp_path: Path) -> None:
    # A machine on which every unit takes a time of its own: the next plan says so, unit by unit.
    made = plan.make(zoo.claim(), "lab", Tier.SMOKE, 0)
    took = {unit.name: (3 + index) * unit.cost_s for index, unit in enumerate(made.units)}
    for unit in made.units:
        timings.note(tmp_path, "lab", unit.stage, unit.stem, unit.cost_s, took[unit.name])
    known = timings.calibration(tmp_path, "lab")
    for unit in made.units:
        if unit.cost_s >= timings.LEAST_COST_S:
            told = known.seconds(unit.stage, unit.stem, unit.cost_s)
            assert told == pytest.approx(took[unit.name])
    # Other work under the same name is scaled by its stage.
    factor = known.factor["perf"]
    assert known.seconds("perf", "block0-0-base", 1e3) == pytest.approx(1e3 * factor)
    assert known.seconds("features", "base", 1e3) > 1e3


def test_one_slow_run_is_not_the_next_ones_plan(tmp_path: Path) -> None:
    for took in (10.0, 90.0, 11.0):
        timings.note(tmp_path, "lab", "perf", "block0-0-base", 5.0, took)
    assert timings.calibration(tmp_path, "lab").seconds("perf", "block0-0-base", 5.0) == 11.0


def test_cells_that_are_not_claimed_cost_nothing() -> None:
    claim = zoo.claim()
    target = claim.targets["lab"]
    grid = target.grid.model_copy(update={"unsupported": {"*": "too long"}})
    none = claim.model_copy(update={"targets": {"lab": target.model_copy(update={"grid": grid})}})

    def cost(which: Claim) -> float:
        return sum(unit.cost_s for unit in plan.make(which, "lab", Tier.SMOKE, 0).stage("perf"))

    assert cost(none) < cost(claim)


def test_longer_and_larger_cells_are_dearer() -> None:
    amounts = plan.TIERS[Tier.SMOKE]

    def cost(**axes: object) -> float:
        cell = Cell.model_validate({"workload": "decode", "batch": 1, "context_tokens": 64} | axes)
        return plan.cell_cost_s(cell, amounts, "vllm")

    assert cost() < cost(batch=64) < cost(batch=64, context_tokens=4096)
    assert cost(workload="mixed") > cost()


def test_what_a_smaller_tier_drops_is_named() -> None:
    full, smoke = plan.TIERS[Tier.FULL], plan.TIERS[Tier.SMOKE]
    assert plan.dropped(full, full) == []
    told = plan.dropped(full, smoke)
    assert "blocks: 2 instead of 6" in told
