"""Protects the exclusions: what makes a sample no measurement of its cell, before its speed is
looked at."""

from __future__ import annotations

from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.rules import speed, validity
from fasttrack.schema import PathRecord, SampleRecord, SessionRecord, State, Verdict

CLAIM = zoo.claim(batch=(4,))
(THE_CELL,) = CLAIM.cells("lab")
RECORDS = zoo.perf(the_claim=CLAIM)
SAMPLE = next(r for r in RECORDS if isinstance(r, SampleRecord) and r.arm == "candidate")
PATHS = [r for r in RECORDS if isinstance(r, PathRecord) and r.arm == "candidate"]


def test_an_honest_sample_counts() -> None:
    assert validity.sample_problem(SAMPLE, THE_CELL) == ""
    assert validity.exercised(SAMPLE, THE_CELL, PATHS)


@pytest.mark.parametrize(
    "change",
    [
        {"completed_requests": 3},
        {"planned_requests": 5, "completed_requests": 5},
        {"prompt_tokens": 255},
        {"cached_tokens": 1},
        {"steps": SAMPLE.steps[:11]},
        {"emitted": ()},
        {"emitted": [2, *SAMPLE.emitted[1:]]},
        {"output_tokens": SAMPLE.output_tokens + 4},
    ],
    ids=lambda change: "-".join(change),
)
def test_a_spoilt_sample_does_not_count(change: dict[str, Any]) -> None:
    assert validity.sample_problem(SAMPLE.model_copy(update=change), THE_CELL)


def test_tokens_beyond_what_steps_decoded_do_not_count() -> None:
    # Told twice in each answer and in each step, so that the two agree.
    twice = {"emitted": [2 * n for n in SAMPLE.emitted], "output_tokens": 2 * SAMPLE.output_tokens}
    told = validity.sample_problem(SAMPLE.model_copy(update=twice), THE_CELL)
    assert "handed out by steps that decoded 48" in told


def test_the_context_is_that_of_the_label() -> None:
    short = {"contexts": [count // 2 for count in SAMPLE.contexts]}
    told = validity.sample_problem(SAMPLE.model_copy(update=short), THE_CELL)
    assert "tokens of context per lane instead of 64" in told


def test_exclusion_does_not_read_durations() -> None:
    slow = [step.model_copy(update={"duration_s": 1e6}) for step in SAMPLE.steps]
    assert validity.sample_problem(SAMPLE.model_copy(update={"steps": slow}), THE_CELL) == ""


def test_a_sample_without_its_own_log_is_not_exercised() -> None:
    others = [path for path in PATHS if path.session != SAMPLE.session]
    assert not validity.exercised(SAMPLE, THE_CELL, others)
    short = [path.model_copy(update={"steps": path.steps[:-1]}) for path in PATHS]
    assert not validity.exercised(SAMPLE, THE_CELL, short)


def test_a_stock_step_before_the_window_does_no_harm() -> None:
    def with_stock(index: int) -> list[PathRecord]:
        return [
            path.model_copy(
                update={
                    "steps": [
                        step.model_copy(update={"path": "stock"}) if i == index else step
                        for i, step in enumerate(path.steps)
                    ]
                }
            )
            for path in PATHS
        ]

    assert validity.exercised(SAMPLE, THE_CELL, with_stock(3))
    assert not validity.exercised(SAMPLE, THE_CELL, with_stock(4))


def test_one_engine_and_the_claimed_switch() -> None:
    assert validity.engine_problem(zoo.case(RECORDS, CLAIM)) == ""
    other = zoo.changed(
        RECORDS,
        SessionRecord,
        lambda r: r.session.startswith("perf-b1-0"),
        fingerprint={"engine": "fake-1"},
    )
    assert "differs in max_model_len" in validity.engine_problem(zoo.case(other, CLAIM))
    off = zoo.changed(RECORDS, SessionRecord, lambda r: r.arm == "candidate", switch=None)
    assert "reports the switch None" in validity.engine_problem(zoo.case(off, CLAIM))


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        ({"device": "cuda", "enforce_eager": True}, True),
        ({"device": "cuda", "enforce_eager": False}, False),
        ({"device": "cpu", "enforce_eager": True}, False),
        ({}, False),
    ],
    ids=str,
)
def test_stock_in_eager_mode_on_a_gpu_is_no_baseline(told: dict[str, Any], refused: bool) -> None:
    records = zoo.changed(RECORDS, SessionRecord, fingerprint=told)
    assert bool(validity.baseline_problem(zoo.case(records, CLAIM))) is refused
    value = CLAIM.json_value()
    for change in ({"role": "development"}, {"baseline_note": "It cannot run otherwise."}):
        lab = {**value["targets"]["lab"], **change}
        excused = zoo.claim(targets={"lab": lab})
        assert validity.baseline_problem(zoo.case(records, excused)) == ""


def on_nodes(places: dict[tuple[int, int], tuple[str, str]]) -> dict[str, str]:
    """Problems by session when (block, position) ran on (node, machine); others on a and small."""
    samples = [r for r in RECORDS if isinstance(r, SampleRecord)]
    watched = {}
    for sample in samples:
        at, machine = places.get((sample.block, sample.position), ("a", "small"))
        watched[sample.session] = {"node": at, "machine": machine}
    return {name: why for name, why in validity._elsewhere(samples, watched).items() if why}


def on_machines(places: dict[tuple[int, int], str]) -> tuple[set[str], Verdict]:
    """Sessions that do not count, and the sentence, when (block, position) ran on a machine."""
    records = []
    for record in RECORDS:
        if isinstance(record, SessionRecord):
            block, position = map(int, record.session.removeprefix("perf-b").split("-")[:2])
            at = places.get((block, position), "aaaa")
            record = record.model_copy(update={"machine": at})
        records.append(record)
    case = zoo.case(records, CLAIM)
    bad = {name for name, why in validity.machine_problems(case).items() if why}
    (sentence,) = [v for v in speed.judge(case) if v.cell == "sentence"]
    return bad, sentence


def test_a_run_may_move_between_pairs() -> None:
    moved = {(0, 2): "bbbb", (0, 3): "bbbb", (1, 0): "bbbb", (1, 1): "bbbb"}
    bad, sentence = on_machines(moved)
    assert not bad and sentence.state is State.PASS


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_pair_of_two_machines_does_not_count(place: int) -> None:
    bad, sentence = on_machines({(1, place): "bbbb"})
    assert {name[:9] for name in bad} == {f"perf-b1-{place}", f"perf-b1-{place ^ 1}"}
    assert sentence.state is State.INCONCLUSIVE


def test_a_session_of_an_unnamed_machine_is_not_paired_with_a_named_one() -> None:
    assert len(on_machines({(0, 0): ""})[0]) == 2


def test_records_that_name_no_machine_are_judged_as_before() -> None:
    everywhere = {(block, place): "" for block in range(2) for place in range(4)}
    bad, sentence = on_machines(everywhere)
    assert not bad and sentence.state is State.PASS


def test_a_whole_block_may_run_on_another_node_of_the_same_kind() -> None:
    assert on_nodes({}) == {}
    assert on_nodes({(1, position): ("b", "small") for position in range(4)}) == {}


def test_a_block_of_two_nodes_does_not_count() -> None:
    found = on_nodes({(1, 3): ("b", "small")})
    assert len(found) == 4
    assert {why for why in found.values()} == {"the sessions of block 1 ran on several nodes"}


def test_a_block_on_another_kind_of_machine_does_not_count() -> None:
    found = on_nodes({(1, position): ("b", "large") for position in range(4)})
    assert {why for why in found.values()} == {"it ran on large, the first one on small"}
