"""Protects readers from records that show less than they seem to: none of these runs may pass.

Each cheat is the honest run of the zoo with one thing spoilt, and names the verdict that must find
it. Every rule's planted faults are here; the honest counterparts are next door, in `honest`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zoo_records as zoo
from spoilt import CHEATS, Cheat
from spoilt.speed import LARGE, SMALL

from fasttrack.schema import (
    STAGES,
    FeatureRecord,
    State,
)
from fasttrack.schema.verdict import REASONS
from fasttrack.selftest import catalogue

ZOO = Path(__file__).resolve().parents[1]
BY_THE_SENTENCE = (State.EQUIVALENT, State.SLOWER)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_cheat_is_found_and_does_not_pass(cheat: Cheat) -> None:
    verdicts, outcome = zoo.decide(cheat.records, zoo.claim(**cheat.claim), **cheat.run)
    verdict = zoo.found(verdicts, cheat.cell)
    assert (verdict.state, verdict.reason) == (cheat.state, cheat.reason), verdict.detail
    assert cheat.says in verdict.detail
    assert outcome.state is not State.PASS
    # Whoever reads the verdict is told how to go on, and what its code means.
    assert verdict.next.startswith("fasttrack validate FOLDER")
    assert verdict.reason in REASONS


def test_names_are_unique() -> None:
    assert len({cheat.name for cheat in CHEATS}) == len(CHEATS)


def test_every_reason_of_the_rules_has_a_cheat() -> None:
    folders = [plant.expect for plant in catalogue.load(ZOO) if plant.group == "cheats"]
    planted = {cheat.reason for cheat in CHEATS} | {wanted.code for wanted in folders}
    by_stages = {"RUN-PARTIAL"}
    good = {
        *("OK", "FEAT-DECLARED", "HOIST-NONE", "ISO-DECLARED", "ISO-REFUSED", "SPD-FASTER"),
        "SPD-UNSUPPORTED",
        "PATH-NO-CODE",
        "VAL-UNROUTED",
        "AGT-FEW",
    }
    assert set(REASONS) - planted - by_stages - good == set()


def test_zero_records_never_pass() -> None:
    verdicts, outcome = zoo.decide([])
    assert outcome.state is State.INCONCLUSIVE
    assert verdicts
    assert not any(v.state in (State.PASS, State.FASTER, State.NON_INFERIOR) for v in verdicts)


def test_only_failures_never_pass() -> None:
    records = [r for r in zoo.honest_run() if isinstance(r, FeatureRecord)]
    assert zoo.decide(records)[1].state is not State.PASS


@pytest.mark.parametrize("stage", list(STAGES))
def test_a_stage_left_out_is_never_admissible(stage: Any) -> None:
    stages = tuple(s for s in STAGES if s != stage)
    verdicts, outcome = zoo.decide(zoo.honest_run(), stages=stages)
    assert zoo.found(verdicts, stage).reason == "RUN-PARTIAL"
    assert not outcome.admissible
    assert outcome.not_admissible_because == (f"stages left out: {stage}",)


def test_a_stage_without_records_does_not_pass() -> None:
    for stage in STAGES:
        _, outcome = zoo.decide(zoo.honest_run(**{stage: []}))
        assert outcome.state is not State.PASS, stage


def test_chosen_cells_are_judged_and_never_admissible() -> None:
    verdicts, outcome = zoo.decide(zoo.honest_run(), cell="decode/batch=1/*", stages=("perf",))
    assert zoo.found(verdicts, SMALL).state is State.FASTER
    assert not [v for v in verdicts if v.cell == LARGE]
    assert zoo.found(verdicts, "sentence").state is State.PASS
    assert not outcome.admissible
    assert "only cells like decode/batch=1/* were measured" in outcome.not_admissible_because


def test_a_choice_of_no_cell_does_not_pass() -> None:
    for stage in ("kernels", "features", "perf"):
        _, outcome = zoo.decide([], cell="nothing/like/it", stages=(stage,))
        assert outcome.state is State.INCONCLUSIVE, stage


def test_lower_tiers_and_development_targets_are_not_admissible() -> None:
    _, outcome = zoo.decide(zoo.honest_run(), tier="smoke")
    assert outcome.state is State.PASS
    assert outcome.not_admissible_because == ("tier smoke is below standard",)
    target = zoo.claim().targets["lab"].model_copy(update={"role": "development"})
    claim = zoo.claim().model_copy(update={"targets": {"lab": target}})
    _, outcome = zoo.decide(zoo.honest_run(), claim)
    assert outcome.not_admissible_because == ("target lab has the role development",)


@pytest.mark.parametrize(
    ("tested", "says"),
    [
        (None, "was not tested"),
        (zoo.self_test(cheats="wrong"), "0/1 cheats caught, 1/1 honest accepted; wrong: a_cheats"),
        (zoo.self_test(honest="wrong"), "1/1 cheats caught, 0/1 honest accepted; wrong: a_honest"),
        (zoo.self_test(cheats="not run"), "was not tested"),
        (zoo.self_test(honest="not run"), "was not tested"),
    ],
)
def test_a_harness_that_was_not_tested_is_not_admissible(tested: Any, says: str) -> None:
    _, outcome = zoo.decide(zoo.honest_run(), self_test=tested)
    assert outcome.state is State.PASS
    assert not outcome.admissible
    (because,) = outcome.not_admissible_because
    assert says in because
