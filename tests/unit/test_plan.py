"""Protects the plan: complete, balanced, and with unit names that change with what they measure."""

from __future__ import annotations

from collections import Counter

import pytest
import zoo_records as zoo
from pydantic import ValidationError

from fasttrack import plan
from fasttrack.bundle import layout
from fasttrack.errors import UsageError
from fasttrack.schema import STAGES, Claim, Tier


def made(claim: Claim | None = None, tier: Tier = Tier.SMOKE, seed: int = 0) -> plan.Plan:
    """The plan of the zoo's claim."""
    return plan.make(claim or zoo.claim(), "lab", tier, seed)


def test_units_of_every_stage() -> None:
    counted = Counter(unit.stage for unit in made().units)
    assert counted == {
        "isolation": 3, "kernels": 2, "path": 2, "features": 2, "evals": 2, "perf": 12,
    }  # fmt: skip
    op, audit = made().stage("kernels")
    assert op.spec["op"] == "mix"
    assert audit.spec == {"check": "compiled"}
    assert [unit.spec["arm"] for unit in made().stage("features")] == ["base", "candidate"]
    assert [unit.stage for unit in made().units] == sorted(
        (unit.stage for unit in made().units), key=STAGES.index
    )


def test_unit_names_can_be_file_names_and_are_unique() -> None:
    for tier in Tier:
        units = made(tier=tier).units
        assert len({(unit.stage, unit.name) for unit in units}) == len(units)
        for unit in units:
            assert layout.unit_path(unit.stage, unit.name)


def test_the_same_arguments_give_the_same_plan() -> None:
    assert made().json_value() == made().json_value()


def test_a_unit_s_name_changes_with_what_decides_its_numbers() -> None:
    def names(*arguments: object) -> set[str]:
        return {unit.name for unit in made(*arguments).units}  # type: ignore[arg-type]

    base = names(None, Tier.SMOKE, 0)
    assert not base & names(None, Tier.SMOKE, 1)
    assert not base & names(None, Tier.STANDARD, 0)
    assert not base & names(zoo.claim(title="Other"), Tier.SMOKE, 0)


def test_costs_are_estimates_and_not_part_of_the_frozen_plan() -> None:
    assert all(unit.cost_s > 0 for unit in made().units)
    assert "cost" not in str(made().json_value())


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("seed", [0, 1, 2, 17])
def test_blocks_are_balanced(tier: Tier, seed: int) -> None:
    sessions = made(tier=tier, seed=seed).stage("perf")
    amounts = plan.TIERS[tier]
    blocks = amounts.blocks + amounts.spare_blocks
    assert len(sessions) == 4 * blocks
    # At every planned look, after two blocks more, each arm was as often at each place.
    for end in range(2, blocks + 1, 2):
        seen = [unit.spec for unit in sessions if unit.spec["block"] < end]
        by_place = Counter((spec["position"], spec["arm"]) for spec in seen)
        assert set(by_place.values()) == {end // 2}
    assert {unit.spec["pairs"] for unit in sessions} == {2 * amounts.blocks}
    for block in range(blocks):
        arms = [unit.spec["arm"] for unit in sessions if unit.spec["block"] == block]
        assert arms in (
            ["base", "candidate", "candidate", "base"],
            ["candidate", "base", "base", "candidate"],
        )


def test_the_order_of_blocks_is_seeded() -> None:
    assert len({plan.orders(6, seed) for seed in range(20)}) > 5
    assert plan.orders(6, 3) == plan.orders(6, 3)


def test_higher_tiers_measure_more() -> None:
    smoke, standard, full = (plan.TIERS[tier] for tier in Tier)
    for name, value in smoke.__dict__.items():
        assert value <= getattr(standard, name) <= getattr(full, name), name


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        plan.make(zoo.claim(), "h100", Tier.SMOKE, 0)
    assert caught.value.code == "CLM-004"
    assert "lab" in caught.value.next_step


def test_a_grid_without_room_for_the_tier_s_window_is_refused() -> None:
    def target(length: int) -> Claim:
        grid = {"batch": [1], "context_tokens": [352]}
        lab = {"engine": "fake", "role": "evidence", "max_model_len": length, "grid": grid}
        return zoo.claim(targets={"lab": lab})

    assert made(target(384)).cells
    with pytest.raises(UsageError) as caught:
        made(target(383))
    assert caught.value.code == "CLM-005"
    with pytest.raises(UsageError, match="256 decode steps"):
        made(target(384), Tier.FULL)


def windows(steps: int | None, tier: Tier, length: int = 2048) -> plan.Plan:
    """The plan of a target that asks for windows of so many steps, behind 352 tokens."""
    grid = {"batch": [1], "context_tokens": [352], "window_steps": steps}
    lab = {"engine": "fake", "role": "evidence", "max_model_len": length, "grid": grid}
    return made(zoo.claim(targets={"lab": lab}), tier)


def test_a_target_may_ask_for_longer_windows_than_its_tier_s_and_for_no_shorter_ones() -> None:
    for steps, tier, planned in (
        (None, Tier.SMOKE, 24),
        (512, Tier.SMOKE, 512),
        (1, Tier.SMOKE, 24),
        (100, Tier.FULL, 256),
    ):
        found = windows(steps, tier)
        assert found.json_value()["amounts"]["window_steps"] == planned
        assert {unit.spec["window_steps"] for unit in found.stage("perf")} == {planned}
    longer, plain = windows(512, Tier.SMOKE), windows(None, Tier.SMOKE)
    assert longer.stage("perf")[0].cost_s > plain.stage("perf")[0].cost_s
    assert "window steps" not in " ".join(
        plan.dropped(windows(512, Tier.FULL).amounts, longer.amounts)
    )


def test_the_target_s_window_needs_room_too() -> None:
    assert windows(512, Tier.SMOKE, 872).cells
    with pytest.raises(UsageError, match="512 decode steps"):
        windows(512, Tier.SMOKE, 871)


@pytest.mark.parametrize("steps", [0, -1])
def test_a_window_of_no_steps_is_refused(steps: int) -> None:
    with pytest.raises(ValidationError, match="window_steps"):
        windows(steps, Tier.SMOKE)


def test_a_context_without_room_for_evals_is_refused() -> None:
    grid = {"batch": [1], "context_tokens": [64]}
    lab = {"engine": "fake", "role": "evidence", "max_model_len": 369, "grid": grid}
    assert made(zoo.claim(targets={"lab": lab})).cells
    with pytest.raises(UsageError, match="no room for evals") as caught:
        made(zoo.claim(targets={"lab": lab | {"max_model_len": 368}}))
    assert (caught.value.code, caught.value.next_step) == ("CLM-005", "raise max_model_len to 369")


def test_stage_names() -> None:
    assert plan.check_stages(("perf", "kernels")) == ("kernels", "perf")
    assert plan.check_stages(()) == ()
    with pytest.raises(UsageError) as caught:
        plan.check_stages(("kernels", "kernel"))
    assert caught.value.code == "USE-001"
    assert "isolation, kernels" in caught.value.next_step
