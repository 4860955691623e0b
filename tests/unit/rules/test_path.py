"""Protects the reading of path evidence: what counts as specialised, stock and fallen back."""

from __future__ import annotations

from typing import Any

import zoo_records as zoo

from fasttrack.rules import path
from fasttrack.schema import State, Verdict


def judge(record: Any, stage: str = "features") -> Verdict:
    """The verdict of one arm that left one record."""
    rule = next(rule for rule in path.RULES if rule.stage == stage)
    (verdict,) = (v for v in rule.judge(zoo.case([record])) if v.cell.endswith(record.arm))
    return verdict


def candidate(scheduled: Any, **kept: Any) -> Any:
    """A record of the candidate arm."""
    return zoo.path("features", "candidate", scheduled, **kept)


def test_counts_are_told() -> None:
    verdict = judge(candidate(zoo.ROUND))
    assert verdict.state is State.PASS
    assert verdict.detail == "3 specialised decode steps; 3 steps with prefill, all stock"
    assert verdict.n == 6


def test_batches_beyond_the_claimed_ones_may_fall_back() -> None:
    # The zoo's grid ends at batch 8: a step of nine is outside the claim, one of eight is inside.
    fast = [zoo.path_step("candidate", 1, 0, 0)]
    for rows, state in ((9, State.PASS), (8, State.FAIL)):
        stock = zoo.path_step(
            "candidate", rows, 0, 1, path="stock", reason="batch above largest prepared"
        )
        verdict = judge(candidate([(1, 0), (rows, 0)], steps=[*fast, stock]))
        assert verdict.state is state, verdict.detail


def test_drafts_may_count_as_prefill_in_the_log() -> None:
    # Verification rows: decode for the scheduler, "not a one-token decode" for the log.
    verify = zoo.path_step("candidate", 0, 6, 1, reason="draft verification")
    steps = [zoo.path_step("candidate", 2, 0, 0), verify]
    assert judge(candidate([(2, 0), (6, 0)], steps=steps)).state is State.PASS


def test_a_specialised_step_nobody_confirmed_still_counts_against_base() -> None:
    steps = [zoo.path_step("base", 1, 0, 0), zoo.path_step("base", 1, 0, 1, path="specialised")]
    verdict = judge(zoo.path("features", "base", [(1, 0)], steps=steps))
    assert verdict.reason == "PATH-BASE"


def test_every_record_is_compared_with_its_own_schedule() -> None:
    good, bad = candidate(zoo.ROUND), candidate(zoo.ROUND, steps=[], cell="features/y")
    rule = path.RULES[0]
    verdict = next(v for v in rule.judge(zoo.case([good, bad])) if v.cell == "features/candidate")
    assert verdict.reason == "PATH-MISMATCH"
    assert verdict.detail.startswith("features/y")


def test_stages_are_judged_apart() -> None:
    assert [rule.stage for rule in path.RULES] == ["features", "evals", "perf"]
    assert judge(candidate(zoo.ROUND), "features").state is State.PASS
    rule = path.RULES[1]
    states = {v.state for v in rule.judge(zoo.case([candidate(zoo.ROUND)]))}
    assert states == {State.MISSING}
