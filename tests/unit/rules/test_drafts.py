"""Protects cells with draft tokens: what is accepted is compared before any time is read, and an
engine that did not start is told apart from one that was not asked."""

from __future__ import annotations

from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.rules import drafts
from fasttrack.rules.base import Case
from fasttrack.schema import Claim, EngineStep, Record, RefusalRecord, SampleRecord, State

STEPS = 60
BATCH, DRAFTS = 4, 3


def claim(**target: Any) -> Claim:
    """One batch, with and without three drafts."""
    made = zoo.claim(batch=(BATCH,)).json_value()
    lab = made["targets"]["lab"]
    lab["grid"] |= {"draft_tokens": [0, DRAFTS]}
    return Claim.model_validate({**made, "targets": {"lab": lab | target}})


CELL = claim().cells("lab")[1]


def samples(base: float, mine: float, steps: int = STEPS) -> list[SampleRecord]:
    """A sample per arm that accepts a share of its drafts."""
    lanes = BATCH * (1 + DRAFTS)
    made = [
        EngineStep(start_s=i, duration_s=1.0, decode_tokens=lanes, prefill_tokens=0)
        for i in range(steps + 3)
    ]
    return [
        zoo.sample(
            CELL, arm, arm, 0, 0, made,
            emitted=[BATCH + round(BATCH * DRAFTS * share)] * len(made),
        )
        for arm, share in (("base", base), ("candidate", mine))
    ]  # fmt: skip


def case(records: list[Record], **target: Any) -> Case:
    return zoo.case(records, claim(**target))


def test_cells_name_their_drafts() -> None:
    assert CELL.id == "decode/batch=4/context_tokens=64/draft_tokens=3"
    assert CELL.shape.name == "draft3" and CELL.lane_tokens == 4
    assert CELL.noise_class != claim().cells("lab")[0].noise_class


@pytest.mark.parametrize("mine", [0.5, 0.505])
def test_equal_acceptance_counts(mine: float) -> None:
    assert drafts.acceptance_problem(samples(0.5, mine), CELL, case([])) == ""


@pytest.mark.parametrize("mine", [1.0, 0.0])
def test_other_acceptance_than_stocks_does_not_count(mine: float) -> None:
    told = drafts.acceptance_problem(samples(0.5, mine), CELL, case([]))
    assert told == f"verification accepts 50.0% of the drafts in base, {mine:.1%} in candidate"


def test_few_drafts_are_given_their_noise() -> None:
    assert drafts.acceptance_problem(samples(0.5, 0.75, steps=2), CELL, case([])) == ""


def test_simulated_acceptance_must_be_what_was_asked_for() -> None:
    wanted = claim(drafts={"acceptance": 0.5}).targets["lab"].drafts.expected(DRAFTS)
    assert wanted == pytest.approx((0.5 + 0.25 + 0.125) / 3)
    simulated = case([], drafts={"acceptance": 0.5})
    ignored = drafts.acceptance_problem(samples(0.0, 0.0), CELL, simulated)
    assert ignored == "base accepts 0.0% of its drafts, not 29.2%"
    assert drafts.acceptance_problem(samples(0.25, 0.25), CELL, simulated) == ""
    assert "SYNTHETIC" in drafts.told(samples(0.25, 0.25), CELL, simulated)


def test_cells_without_drafts_are_not_concerned() -> None:
    plain = claim().cells("lab")[0]
    assert drafts.acceptance_problem(samples(0.0, 1.0), plain, case([])) == ""
    assert drafts.told(samples(0.0, 1.0), plain, case([])) == ""


def refusal(arm: Any) -> RefusalRecord:
    return RefusalRecord(session=arm, arm=arm, shape="draft3", code="ENG-001", cause="planted")


def test_a_shape_that_stock_refuses_is_unsupported() -> None:
    both = [refusal("candidate"), refusal("base")]
    assert drafts.refusal(case([]), CELL) is None
    found = drafts.refusal(case([*both]), CELL)
    assert found == (State.UNSUPPORTED, "stock does not start: ENG-001 planted")
    assert drafts.refusal(case([*both]), claim().cells("lab")[0]) is None


def test_a_shape_that_only_the_candidate_refuses_is_not_exercised() -> None:
    found = drafts.refusal(case([refusal("candidate")]), CELL)
    assert found is not None and found[0] is State.NOT_EXERCISED
