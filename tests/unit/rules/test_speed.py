"""Protects the speed rule: no gain is found where there is none, and a real one is.

Whole-run cheats are in `tests/zoo`; here are error rates over many simulated sweeps, the pairing
against drift, the thresholds from both sides, and the three sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import zoo_records as zoo

from fasttrack import rules, stats
from fasttrack.rules import speed
from fasttrack.schema import Claim, PathRecord, Policy, SampleRecord, State, Verdict

ONE = zoo.claim(batch=(4,))
CELL = "decode/batch=4/context_tokens=64"
LEVEL = Policy().speed.level


def judge(speedup: float, claim: Claim = ONE, **how: Any) -> tuple[Verdict, ...]:
    """Verdicts of one simulated sweep."""
    return tuple(speed.judge(zoo.case(zoo.perf(speedup, the_claim=claim, **how), claim)))


def states(speedup: float, count: int, **how: Any) -> Counter[State]:
    """States of the one cell over many simulated sweeps."""
    return Counter(judge(speedup, seed=seed, **how)[0].state for seed in range(count))


@pytest.mark.parametrize("boot_noise", [0.001, 0.01, 0.05])
def test_equal_arms_are_hardly_ever_called_faster_or_slower(boot_noise: float) -> None:
    # The bound states the level of each side; the noise floor must keep the rate well below it.
    found = states(1.0, 400, boot_noise=boot_noise)
    for state in (State.FASTER, State.SLOWER):
        assert found[state] <= 400 * LEVEL / 2, found


def test_equal_arms_on_a_drifting_machine_are_not_called_faster_or_slower() -> None:
    found = states(1.0, 100, boot_noise=0.002, drift=0.01)
    assert not found[State.FASTER] + found[State.SLOWER], found


def test_a_true_gain_is_found() -> None:
    assert states(1.5, 100, boot_noise=0.01) == {State.FASTER: 100}


def test_a_true_loss_is_found() -> None:
    assert states(0.8, 100, boot_noise=0.01) == {State.SLOWER: 100}


def test_the_interval_holds_the_true_ratio() -> None:
    inside = 0
    for seed in range(200):
        verdict = judge(1.5, seed=seed, boot_noise=0.01)[0]
        assert verdict.lower is not None and verdict.upper is not None
        inside += verdict.lower <= 1.5 <= verdict.upper
    # Each bound holds with probability 1 - level, so both with at least 1 - 2 * level.
    assert inside >= 200 * (1 - 2 * LEVEL) - 10


def test_a_verdict_tells_its_numbers() -> None:
    verdict = judge(1.5, boot_noise=0.002)[0]
    assert verdict.estimate == pytest.approx(1.5, rel=0.02)
    assert verdict.unit == "x"
    assert verdict.n == 4
    assert verdict.floor is not None and verdict.floor >= 1.005
    assert "TPOT 2" in verdict.detail


def test_a_gain_below_the_floor_does_not_count() -> None:
    # Without noise any difference is certain; the floor of 0.5 % decides alone.
    assert judge(1.004, boot_noise=0.0, step_noise=0.0)[0].state is State.EQUIVALENT
    assert judge(1.006, boot_noise=0.0, step_noise=0.0)[0].state is State.FASTER
    assert judge(0.996, boot_noise=0.0, step_noise=0.0)[0].state is State.EQUIVALENT
    assert judge(0.994, boot_noise=0.0, step_noise=0.0)[0].state is State.SLOWER


def test_linear_drift_cancels_between_the_pairs_of_a_block() -> None:
    verdict = judge(1.0, boot_noise=0.0, step_noise=0.0, drift=0.05)[0]
    assert verdict.estimate == pytest.approx(1.0, abs=2e-3)


def test_the_median_step_counts_and_not_the_mean() -> None:
    records = zoo.perf(1.0, the_claim=ONE, boot_noise=0.0, step_noise=0.0)
    slow = [
        r.model_copy(update={"steps": (*r.steps[:8], r.steps[8].model_copy(
            update={"duration_s": 1.0}), *r.steps[9:])})
        if isinstance(r, SampleRecord) and r.arm == "base"
        else r
        for r in records
    ]  # fmt: skip
    assert next(iter(speed.judge(zoo.case(slow, ONE)))).estimate == pytest.approx(1.0)


def test_excluded_sessions_are_told_and_too_many_invalidate() -> None:
    def verdict(*lost: str, blocks: int = 3) -> Verdict:
        records = zoo.changed(
            zoo.perf(1.5, the_claim=ONE, blocks=blocks), SampleRecord, lambda r: r.session in lost,
            cached_tokens=1,
        )  # fmt: skip
        return next(iter(speed.judge(zoo.case(records, ONE))))

    one = verdict("perf-b0-0-base")
    assert one.state is State.FASTER and one.n == 4
    assert "excluded perf-b0-0-base: 1 prompt tokens" in one.detail
    # Two sessions of one pair cost one pair only; two of two pairs leave too few.
    assert verdict("perf-b0-0-base", "perf-b0-1-candidate").state is State.FASTER
    assert verdict("perf-b0-0-base", "perf-b0-3-base", blocks=2).reason == "SPD-PAIRS"
    three = verdict("perf-b0-0-base", "perf-b0-1-candidate", "perf-b0-3-base", blocks=2)
    assert (three.state, three.reason) == (State.INVALID, "VAL-TOKENS")


def test_pairs_need_both_arms() -> None:
    records = zoo.changed(zoo.perf(the_claim=ONE), SampleRecord, arm="base")
    samples = [r for r in records if isinstance(r, SampleRecord)]
    assert speed._pairs(samples, ONE.cells("lab")[0]) == []


def test_pairs_are_outer_with_inner() -> None:
    samples = [r for r in zoo.perf(2.0, the_claim=ONE, boot_noise=0.0, step_noise=0.0)
               if isinstance(r, SampleRecord)]  # fmt: skip
    pairs = speed._pairs(samples, ONE.cells("lab")[0])
    assert [pair.log for pair in pairs] == pytest.approx([math.log(2.0)] * 4)
    assert [pair.block for pair in pairs] == [0, 0, 1, 1]


# Sentences

TWO = (1, 8)
FAST = {1: 1.5, 8: 1.5}


def sentence(words: dict[str, Any], by_batch: dict[int, float], **how: Any) -> Verdict:
    """The sentence's verdict over cells with their own true ratios."""
    claim = zoo.claim(batch=tuple(by_batch), speed=words)
    records: list[Any] = []
    for batch, ratio in by_batch.items():
        made = zoo.perf(ratio, the_claim=claim, **how)
        cell = f"decode/batch={batch}/context_tokens=64"
        records += [r for r in made if getattr(r, "cell", cell) == cell]
    return tuple(speed.judge(zoo.case(records, claim)))[-1]


EVERYWHERE = {"sentence": "faster_everywhere"}
NAMED = {"sentence": "faster_in_named_cells", "faster_batches": [1]}
NOWHERE = {"sentence": "slower_nowhere", "slower_margin_percent": 2.0}


@pytest.mark.parametrize(
    ("words", "by_batch", "state"),
    [
        (EVERYWHERE, {1: 1.5, 8: 1.5}, State.PASS),
        (EVERYWHERE, {1: 1.5, 8: 1.0}, State.FAIL),
        (EVERYWHERE, {1: 1.5, 8: 0.8}, State.FAIL),
        (NAMED, {1: 1.5, 8: 1.0}, State.PASS),
        (NAMED, {1: 1.5, 8: 0.9}, State.FAIL),
        (NAMED, {1: 1.0, 8: 1.5}, State.FAIL),
        (NOWHERE, {1: 1.0, 8: 1.0}, State.PASS),
        (NOWHERE, {1: 1.5, 8: 0.99}, State.PASS),
        (NOWHERE, {1: 1.5, 8: 0.95}, State.FAIL),
    ],
)
def test_a_sentence_follows_from_its_cells(
    words: dict[str, Any], by_batch: dict[int, float], state: State
) -> None:
    verdict = sentence(words, by_batch)
    assert verdict.state is state, verdict.detail
    if state is State.FAIL:
        assert verdict.reason == "SPD-SENTENCE"
        assert "batch=" in verdict.detail


@pytest.mark.parametrize("words", [EVERYWHERE, NAMED, NOWHERE])
def test_an_undecided_cell_leaves_the_sentence_open(words: dict[str, Any]) -> None:
    verdict = sentence(words, {1: 1.02, 8: 1.02}, boot_noise=0.2, seed=3)
    assert verdict.state is State.INCONCLUSIVE


def test_speed_cells_inform_and_the_sentence_decides() -> None:
    verdicts = judge(1.5)
    assert [v.deciding for v in verdicts] == [False, True]


def test_the_floor_comes_from_base_against_base() -> None:
    quiet = stats.noise_floor([0.001, -0.0005], 4, LEVEL)
    loud = stats.noise_floor([0.01, -0.005], 4, LEVEL)
    assert loud == pytest.approx(10 * quiet)


# Settled cells


def settled(records: list[Any], block: int, pairs: int = 12, claim: Claim = ONE) -> bool:
    """Whether the cell needs no block from this one on."""
    info = zoo.run_info(("perf",))
    return CELL in rules.settled(claim, info, records, Policy(), block, pairs)


def test_a_decided_cell_needs_no_further_block() -> None:
    records = zoo.perf(1.5, the_claim=ONE, blocks=2)
    assert settled(records, 2)
    # After one block there was no look yet, whatever lies behind it.
    assert not settled(records, 1)


def test_an_open_cell_is_measured_on() -> None:
    records = zoo.perf(1.05, the_claim=ONE, blocks=2, boot_noise=0.1)
    assert not settled(records, 2)
    # Unless the tier plans no more pairs than it has.
    assert settled(records, 2, pairs=4)


def test_a_spare_block_is_for_cells_that_lost_a_pair() -> None:
    records = zoo.changed(
        zoo.perf(1.0, the_claim=ONE, blocks=2, boot_noise=0.1), SampleRecord,
        lambda r: r.session == "perf-b0-0-base", cached_tokens=1,
    )  # fmt: skip
    assert not settled(records, 2, pairs=4)
    records += [r for r in zoo.perf(1.0, the_claim=ONE, blocks=3, boot_noise=0.1)
                if getattr(r, "block", 0) == 2]  # fmt: skip
    assert settled(records, 3, pairs=4)


def test_a_stock_step_ends_the_measuring_of_its_cell() -> None:
    records = zoo.changed(zoo.perf(the_claim=ONE, blocks=1), PathRecord, steps=())
    assert settled(records, 1)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([8, 8.2, 7.9], "8"),
        ([7, 8, 8, 8], "7 25 %, 8 75 %"),
        ([64 + n for n in range(16)], "64-67 25 %, 68-71 25 %, 72-75 25 %, 76-79 25 %"),
        ([1, 1, 1, 64], "1-16 75 %, 49-64 25 %"),
    ],
    ids=str,
)
def test_what_was_achieved_is_told_as_shares_of_the_steps(values: list[float], wanted: str) -> None:
    assert speed._histogram(values) == wanted
