"""Protects the eval rule's arithmetic: margins, noise, and what a tie is.

The planted faults are in `tests/zoo/cheats`, ties that must be excused in `tests/zoo/honest`.
"""

from __future__ import annotations

import pytest
import zoo_records as zoo

from fasttrack.rules import accuracy, quality
from fasttrack.schema import ItemRecord, Policy, State, Verdict
from fasttrack.schema.policy import QualityPolicy


def judge(records: list[ItemRecord], policy: Policy | None = None) -> dict[str, Verdict]:
    """Accuracy and divergence of the zoo's eval."""
    return {v.cell: v for v in quality.judge(zoo.case(records, policy=policy))}


def scored(count: int, wrong: int) -> list[ItemRecord]:
    """Base is always right, the candidate is wrong in `wrong` of `count` items."""
    made = []
    for index in range(count):
        made += [
            zoo.item(index, "base"),
            zoo.item(index, "base", "control"),
            zoo.item(index, "candidate", score=float(index >= wrong)),
            zoo.item(index, "candidate", "control"),
        ]
    return made


@pytest.mark.parametrize(
    ("count", "wrong", "state"),
    [
        (20, 0, State.NON_INFERIOR),
        (20, 1, State.INCONCLUSIVE),
        (400, 2, State.NON_INFERIOR),
        (400, 6, State.NON_INFERIOR_BUT_WORSE),
        (400, 80, State.INFERIOR),
        (20, 20, State.INFERIOR),
    ],
)
def test_accuracy(count: int, wrong: int, state: State) -> None:
    verdict = judge(scored(count, wrong))["recall/accuracy"]
    assert verdict.state is state, (verdict.lower, verdict.upper)
    assert verdict.n == count


def test_a_certain_loss_within_the_margin_needs_a_human() -> None:
    records = scored(400, 6)
    _, outcome = zoo.decide(zoo.honest_run(evals=zoo.evals(records)))
    assert outcome.state is State.INCONCLUSIVE


def test_margin_comes_from_policy() -> None:
    strict = Policy(quality=QualityPolicy(accuracy_margin=0.001))
    assert judge(scored(400, 2))["recall/accuracy"].state is State.NON_INFERIOR
    assert judge(scored(400, 2), strict)["recall/accuracy"].state is State.INCONCLUSIVE


def test_scores_of_a_task_that_asks_what_nobody_knows_are_not_judged() -> None:
    moved = [r.model_copy(update={"eval": "cloze"}) for r in scored(20, 10)]
    assert "recall/accuracy" in judge(scored(20, 10))
    assert {cell.split("/")[1] for cell in judge(moved)} == {"length", "divergence", "replay"}


def drifted(shift: float, answers: int) -> Verdict:
    """Divergence where stock moved by 2e-3 nats and the candidate's first `answers` by `shift`."""
    records = [
        zoo.item(int(r.item[7:]), "candidate", score=r.score, shift=shift)
        if (r.arm, r.repeat) == ("candidate", "main") and int(r.item[7:]) < answers
        else r
        for r in zoo.answers(noise=2e-3)
    ]
    return judge(records)["recall/divergence"]


@pytest.mark.parametrize(("shift", "state"), [(0.0049, State.PASS), (0.0051, State.FAIL)])
def test_typical_drift_is_allowed_up_to_a_multiple_of_stock_s_own(
    shift: float, state: State
) -> None:
    # Twice stock's 2e-3 and the slack of 1e-3 are allowed.
    verdict = drifted(shift, 1000)
    assert verdict.state is state, verdict.detail
    assert verdict.estimate == pytest.approx(shift)


@pytest.mark.parametrize(("shift", "state"), [(0.103, State.PASS), (0.105, State.FAIL)])
def test_one_answer_may_drift_as_far_as_a_tie_of_experts(shift: float, state: State) -> None:
    verdict = drifted(shift, 1)
    assert verdict.state is state, verdict.detail
    assert verdict.floor == pytest.approx(0.104)


@pytest.mark.parametrize(("gap", "state"), [(0.1009, State.PASS), (0.1011, State.INCONCLUSIVE)])
def test_the_model_is_undecided_below_a_tie_and_stock_s_own_noise(gap: float, state: State) -> None:
    base = zoo.item(0, "base", gaps=(gap, *[2.0] * 7))
    control = zoo.item(0, "base", "control", gaps=(gap, *[2.001] * 7))
    mine = zoo.item(0, "candidate", tokens=(99, *range(1, 8)))
    verdict = judge([base, control, mine])["recall/divergence"]
    assert verdict.state is state, verdict.detail


@pytest.mark.parametrize(
    ("mine", "stock", "state"),
    [
        (0, 0, State.PASS),
        (1, 0, State.INCONCLUSIVE),
        (4, 0, State.INCONCLUSIVE),
        (5, 0, State.FAIL),
        (5, 1, State.INCONCLUSIVE),
        (12, 4, State.FAIL),
        # As many as stock itself: still no proof that nothing is wrong.
        (3, 3, State.INCONCLUSIVE),
    ],
)
def test_partings_are_weighed_against_stock_s_own(mine: int, stock: int, state: State) -> None:
    records = []
    for index in range(20):
        other = (99, *range(index + 1, index + 8))
        records += [
            zoo.item(index, "base"),
            zoo.item(index, "base", "control", tokens=other if index < stock else ()),
            zoo.item(index, "candidate", tokens=other if index < mine else ()),
        ]
    verdict = judge(records)["recall/divergence"]
    assert verdict.state is state, verdict.detail
    assert verdict.reason == {
        State.PASS: "OK", State.INCONCLUSIVE: "EVAL-PARTED", State.FAIL: "EVAL-DIVERGED",
    }[state]  # fmt: skip


def test_an_answer_that_ends_at_a_tie_has_parted_all_the_same() -> None:
    base = zoo.item(0, "base", gaps=(2.0, 2.0, 0.0, *[2.0] * 5))
    control = zoo.item(0, "base", "control", gaps=(2.0, 2.0, 0.0, *[2.0] * 5))
    mine = zoo.item(0, "candidate", tokens=(0, 1))
    verdict = judge([base, control, mine])["recall/divergence"]
    assert verdict.reason == "EVAL-PARTED"
    assert "one ends" in verdict.detail


def test_after_the_answers_part_nothing_is_compared() -> None:
    base = zoo.item(0, "base", gaps=(2.0, 0.0, *[2.0] * 6))
    control = zoo.item(0, "base", "control", gaps=(2.0, 0.0, *[2.0] * 6))
    mine = zoo.item(0, "candidate", tokens=(0, 99, *range(2, 8)), logprobs=(-0.5, *[-9.0] * 7))
    assert judge([base, control, mine])["recall/divergence"].state is State.PASS


def test_evals_are_judged_apart() -> None:
    other = zoo.changed(zoo.answers(), ItemRecord, eval="other")
    verdicts = judge([*zoo.answers(), *other])
    kinds = ("accuracy", "accuracy/concurrency=1", "alarm", "divergence", "length", "replay")
    assert set(verdicts) == {f"{name}/{kind}" for name in ("recall", "other") for kind in kinds}
    assert {v.reason for v in verdicts.values()} == {"OK"}


def test_samples_of_one_item_are_one_cluster() -> None:
    records = []
    for sample in range(40):
        name = f"recall-{sample % 2}#{sample}"
        records += [
            zoo.item(sample, "base", item=name),
            zoo.item(sample, "candidate", item=name, score=float(sample % 4 > 1)),
        ]
    assert judge(records)["recall/accuracy"].n == 2


def test_a_loss_that_only_one_interval_sees_is_not_decided() -> None:
    # One answer in forty is worthless: Student's bound clears the margin, the bootstrap's does not.
    skewed = [0.002] * 30 + [0.004] * 9 + [-0.9]
    assert accuracy._state(skewed, 0.07) == (State.INCONCLUSIVE, False)
    assert accuracy._state([0.01, -0.01] * 20, 0.05) == (State.NON_INFERIOR, True)


def test_three_lost_answers_are_too_few_to_call_an_eval_inferior() -> None:
    assert judge(scored(64, 3))["recall/accuracy"].state is State.INCONCLUSIVE
    assert judge(scored(64, 7))["recall/accuracy"].state is State.INFERIOR


@pytest.mark.parametrize(
    ("longer", "state"),
    [([0] * 20, State.PASS), ([1] * 20, State.FAIL), ([1] + [0] * 19, State.PASS),
     ([3, -3] * 10, State.INCONCLUSIVE)],
)  # fmt: skip
def test_lengths_are_equal_within_the_margin(longer: list[int], state: State) -> None:
    records = []
    for index, more in enumerate(longer):
        for arm in zoo.ARMS:
            count = 16 + (more if arm == "candidate" else 0)
            records.append(zoo.item(index, arm, tokens=range(count), finish_reason="stop"))
    verdict = judge(records)["recall/length"]
    assert verdict.state is state, (verdict.lower, verdict.upper)


def test_alarms_are_corrected_over_all_evals() -> None:
    def lost(count: int, name: str) -> list[ItemRecord]:
        return zoo.changed(scored(20, count), ItemRecord, eval=name)

    assert judge(lost(5, "one"))["one/alarm"].state is State.INCONCLUSIVE
    verdicts = judge([*lost(5, "one"), *lost(0, "two")])
    assert verdicts["one/alarm"].state is State.PASS
    assert "p = 0.062 over 2 evals" in verdicts["one/alarm"].detail
