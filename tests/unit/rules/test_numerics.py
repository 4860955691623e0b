"""Protects the limits of the kernel rule from both sides, and its arithmetic at the edges.

The planted faults, one per reason, are in `tests/zoo/cheats`.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.rules import numerics
from fasttrack.schema import ErrorStats, KernelRecord, Policy, State, Verdict

LIMITS = Policy().numerics


def judge(candidate: list[ErrorStats], **how: Any) -> Verdict:
    """The verdict of one cell whose seeds have these errors."""
    (verdict,) = numerics.judge(zoo.case(zoo.kernels(candidate, **how)))
    return verdict


@pytest.mark.parametrize(
    ("quantity", "stock"),
    [("rms", 1e-6), ("q999", 3e-6), ("max", 4e-6), ("worst_slice_rms", 1.5e-6)],
)
def test_each_ratio_has_its_limit(quantity: str, stock: float) -> None:
    limit = getattr(LIMITS, f"ratio_{quantity}")
    below = judge([zoo.errors(**{quantity: 0.99 * limit * stock})])
    above = judge([zoo.errors(**{quantity: 1.01 * limit * stock})])
    assert below.state is State.PASS, below.detail
    assert (above.state, above.reason) == (State.FAIL, "NUM-RATIO")
    assert f"mix.y: {quantity} error" in above.detail


def test_spread_between_seeds_widens_the_bound() -> None:
    # A mean ratio of 1.1 passes when every seed shows it; it is open when seeds contradict each
    # other, and refuted when even the lower bound is above the limit.
    assert judge([zoo.errors(rms=1.1e-6)]).state is State.PASS
    apart = [zoo.errors(rms=0.7e-6), zoo.errors(rms=1.5e-6)]
    verdict = judge(apart)
    assert (verdict.state, verdict.reason) == (State.INCONCLUSIVE, "NUM-POWER")
    above = [zoo.errors(rms=1.9e-6), zoo.errors(rms=2.1e-6)]
    assert judge(above).reason == "NUM-RATIO"


def test_the_reference_rounding_is_a_floor_for_both_sides() -> None:
    # Stock happens to be exact; a candidate within rounding of the reference is as good.
    records = zoo.changed(
        zoo.kernels([zoo.errors(0.005)]), KernelRecord, stock=zoo.errors(0.0), rounding_rms=2e-8
    )
    (verdict,) = numerics.judge(zoo.case(records))
    assert verdict.state is State.PASS, verdict.detail
    assert verdict.estimate == pytest.approx(1.0)


def test_cap_is_a_multiple_of_the_largest_stock_error() -> None:
    quiet = [zoo.errors() for _ in range(15)]
    cap = LIMITS.hard_cap * 4e-6
    assert judge([*quiet, zoo.errors(max=0.99 * cap)], seeds=16).state is State.PASS
    assert judge([*quiet, zoo.errors(max=1.01 * cap)], seeds=16).reason == "NUM-CAP"


@pytest.mark.parametrize("sign", [1, -1])
def test_bias_is_found_in_both_directions(sign: int) -> None:
    assert judge([zoo.errors(mean_signed=sign * 0.09e-6)]).state is State.PASS
    assert judge([zoo.errors(mean_signed=sign * 0.11e-6)]).reason == "NUM-BIAS"


def test_bias_that_changes_sign_between_seeds_is_no_bias() -> None:
    assert judge([zoo.errors(mean_signed=s * 0.5e-6) for s in (1, -1)]).state is State.PASS


def test_answers_of_one_seed_to_several_probes_are_no_seeds() -> None:
    # Whoever came late, the answer is the same, bias of this one seed included. Three of them say
    # no more than one; what is far off is found in any of them.
    def late(*answers: ErrorStats) -> Verdict:
        sent = [zoo.probed(f"skew:{n}", one, seeds=1)[-1] for n, one in enumerate(answers)]
        (verdict,) = numerics.judge(zoo.case([*zoo.kernels(), *sent]))
        return verdict

    biased = zoo.errors(mean_signed=0.11e-6)
    assert late(biased, biased, biased).state is State.PASS
    wrong = late(biased, zoo.errors(max=1.01 * LIMITS.hard_cap * 4e-6), biased)
    assert (wrong.state, wrong.reason) == (State.FAIL, "NUM-SKEW")
    assert wrong.detail.startswith("skew:1: ")


def test_bias_as_large_as_stock_s_is_allowed() -> None:
    records = zoo.changed(
        zoo.kernels([zoo.errors(mean_signed=0.5e-6)]),
        KernelRecord,
        stock=zoo.errors(mean_signed=0.4e-6),
    )
    (verdict,) = numerics.judge(zoo.case(records))
    assert verdict.state is State.PASS, verdict.detail


def test_every_output_is_judged() -> None:
    records = [*zoo.kernels(), *zoo.kernels([zoo.errors(2.0)], output="state")]
    (verdict,) = numerics.judge(zoo.case(records))
    assert verdict.reason == "NUM-RATIO"
    assert "mix.state" in verdict.detail


def test_untouched_rows_that_kept_their_bits_pass() -> None:
    assert judge([zoo.errors()], untouched_equal=True).state is State.PASS


def test_cells_are_judged_apart() -> None:
    records = [*zoo.kernels(), *zoo.kernels([zoo.errors(2.0)], cell="mix/batch=2")]
    found = {verdict.cell: verdict.state for verdict in numerics.judge(zoo.case(records))}
    assert found == {"mix/batch=1": State.PASS, "mix/batch=2": State.FAIL}


def test_the_estimate_is_the_worst_ratio_of_the_cell() -> None:
    records = [*zoo.kernels([zoo.errors(1.0)]), *zoo.kernels([zoo.errors(1.2)], output="state")]
    (verdict,) = numerics.judge(zoo.case(records))
    assert verdict.state is State.PASS
    assert verdict.estimate == pytest.approx(1.2)


@pytest.mark.parametrize("seed", range(20))
def test_no_measure_makes_the_arithmetic_fail(seed: int) -> None:
    # Zero, tiny, huge and overflown (null) errors in any mixture: a verdict, never an exception.
    rng = random.Random(seed)
    values = [None, 0.0, 5e-324, 1e-12, 1.0, 1e100, 1.7e308]

    def any_errors() -> ErrorStats:
        names = ("rms", "q999", "max", "worst_slice_rms", "mean_signed")
        return zoo.errors(**{name: rng.choice(values) for name in names})

    for _ in range(20):
        records = [
            r.model_copy(update={"stock": any_errors(), "candidate": any_errors()})
            if isinstance(r, KernelRecord)
            else r
            for r in zoo.kernels(seeds=rng.choice([3, 4]))
        ]
        (verdict,) = numerics.judge(zoo.case(records))
        assert verdict.json_value()


def test_an_error_beyond_measure_never_passes() -> None:
    for stock in (0.0, 1e-6, 1e100, 1.7e308):
        records = zoo.changed(
            zoo.kernels([zoo.errors(rms=None)]),
            KernelRecord,
            stock=zoo.errors(rms=stock),
            rounding_rms=0.0,
        )
        (verdict,) = numerics.judge(zoo.case(records))
        if stock < 1e100:
            assert verdict.state is State.FAIL, stock
