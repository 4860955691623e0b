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


def judged(record: Any) -> list[Verdict]:
    """All verdicts of the candidate's arm."""
    return [v for v in path.RULES[0].judge(zoo.case([record])) if "candidate" in v.cell]


def candidate(scheduled: Any, **kept: Any) -> Any:
    """A record of the candidate arm."""
    return zoo.path("features", "candidate", scheduled, **kept)


def test_counts_are_told() -> None:
    verdict = judge(candidate(zoo.ROUND))
    assert verdict.state is State.PASS
    assert verdict.detail == (
        "3 specialised decode steps in 2 cells; 3 steps with prefill, all stock"
    )
    assert verdict.n == 6


def test_batches_beyond_the_claimed_ones_may_fall_back() -> None:
    # The zoo's grid ends at batch 8: a step of nine is outside the claim, one of eight is inside.
    fast = [zoo.path_step("candidate", 1, 0, 0)]
    for rows, apart in ((9, []), (8, ["features/candidate/x/rows=2-8"])):
        stock = zoo.path_step(
            "candidate", rows, 0, 1, path="stock", reason="batch above largest prepared"
        )
        record = candidate([(1, 0), (rows, 0)], steps=[*fast, stock])
        summary, *others = judged(record)
        assert (summary.cell, summary.state) == ("features/candidate", State.PASS)
        assert [verdict.cell for verdict in others] == apart
        assert {verdict.state for verdict in others} <= {State.NOT_EXERCISED}


def test_rows_are_what_the_scheduler_says() -> None:
    # A log that calls eight rows nine does not move the step out of the claim.
    steps = [
        zoo.path_step("candidate", 1, 0, 0),
        zoo.path_step("candidate", 8, 0, 1, path="stock", reason="too many", requests=9),
    ]
    assert judged(candidate([(1, 0), (8, 0)], steps=steps))[1].state is State.NOT_EXERCISED


def test_exactly_the_cells_that_fell_back_are_named() -> None:
    claim = zoo.claim(batch=(1, 8, 16))
    records = []
    for cell in claim.cells("lab"):
        scheduled = [(0, 64 * cell.batch), *[(cell.batch, 0)] * 12]
        steps = [zoo.path_step("candidate", d, p, n) for n, (d, p) in enumerate(scheduled)]
        if cell.batch > 8:
            steps = [s.model_copy(update={"path": "stock", "reason": "no unit"}) for s in steps]
        records.append(zoo.path("perf", "candidate", scheduled, cell=cell.id, steps=steps))
    verdicts = [v for v in path.RULES[2].judge(zoo.case(records, claim)) if "candidate" in v.cell]
    states = {verdict.cell: (verdict.state, verdict.reason) for verdict in verdicts}
    assert states == {
        "perf/candidate": (State.PASS, "OK"),
        "perf/candidate/decode/batch=16/context_tokens=64": (State.NOT_EXERCISED, "PATH-NONE"),
    }
    assert verdicts[1].detail == "12 decode steps, none specialised: 12x no unit"


def test_drafts_may_count_as_prefill_in_the_log() -> None:
    # Verification rows: decode for the scheduler, "not a one-token decode" for the log.
    verify = zoo.path_step("candidate", 0, 6, 1, reason="draft verification")
    steps = [zoo.path_step("candidate", 2, 0, 0), verify]
    assert judge(candidate([(2, 0), (6, 0)], steps=steps, drafted=(1,))).state is State.PASS
    # Without drafts, a step of decodes that the log calls prefill is a hidden fallback.
    assert judge(candidate([(2, 0), (6, 0)], steps=steps)).reason == "PATH-MISMATCH"


def test_a_prompts_last_token_may_run_specialised_and_is_told() -> None:
    # A decode and a last token: two requests, two tokens. With 17 tokens it is prefill.
    scheduled = [(0, 31), (1, 1), (2, 0)]
    for prefill, state in ((1, State.PASS), (16, State.FAIL)):
        scheduled[1] = 1, prefill
        steps = [zoo.path_step("candidate", d, p, n) for n, (d, p) in enumerate(scheduled)]
        last = {"path": "specialised", "requests": 2}
        steps[1] = zoo.path_step("candidate", 1, prefill, 1, **last)
        verdict = judge(candidate(scheduled, steps=steps))
        assert verdict.state is state
        said = "2 steps with prefill, all stock but 1 of last tokens"
        assert verdict.reason == "PATH-PREFILL" if prefill > 1 else said in verdict.detail


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
    assert [rule.stage for rule in path.RULES] == ["features", "evals", "perf", "path"]
    assert judge(candidate(zoo.ROUND), "features").state is State.PASS
    rule = path.RULES[1]
    states = {v.state for v in rule.judge(zoo.case([candidate(zoo.ROUND)]))}
    assert states == {State.MISSING}
