"""The kernel cases keep their protocol and mean something.

Protects: what the harness relies on (seeds, names, dtypes, poison), the compiled units (every
cell here runs them), and that the measure used here sees a planted fault.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kimi_k3.cases import cases, common

Tensors = dict[str, Tensor]
CASES = {case.op: case for case in cases()}
# Of error over stock's error, in root mean square; the harness itself is far stricter.
LIMIT = 3.0


def _copy(inputs: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in inputs.items()}


def _error(found: Tensor, wanted: Tensor) -> float:
    """Root mean square over what is finite in `wanted`; only a NaN may stand for a NaN."""
    assert found.shape == wanted.shape
    finite = torch.isfinite(wanted)
    assert torch.equal(torch.isnan(found), torch.isnan(wanted)) and finite.any()
    return math.sqrt(float((found.double() - wanted)[finite].square().mean()))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(12345.0), other.nan_to_num(12345.0))


def _edges(case: Any) -> list[int]:
    """Three batches of each number of tokens, and everything that is not in the grid."""
    regimes = case.regimes()
    small = [n for n, one in enumerate(regimes) if one["batch"] in (1, 3, 9)]
    return sorted({*small, *range(len(common.GRID), len(regimes))})


def _cells() -> list[tuple[str, int]]:
    return [(op, n) for op, case in CASES.items() for n in range(len(case.regimes()))]


def test_the_ops_of_the_claim_have_cases() -> None:
    assert {"kda", "mla", "moe"} <= set(CASES)


@pytest.mark.parametrize("op", CASES)
def test_every_batch_with_every_number_of_tokens_is_a_cell(op: str) -> None:
    regimes = CASES[op].regimes()
    cells = {(regime["batch"], regime["tokens"]) for regime in regimes}
    assert cells >= {(batch, tokens) for batch in common.BATCHES for tokens in common.TOKENS}
    assert len({tuple(sorted(regime.items())) for regime in regimes}) == len(regimes)


@pytest.mark.parametrize("op", CASES)
def test_seeds_decide_the_inputs(op: str) -> None:
    case = CASES[op]
    regime = case.regimes()[0]
    first, again, other = case.inputs(regime, 1), case.inputs(regime, 1), case.inputs(regime, 2)
    equal = [torch.equal(first[n].nan_to_num(), again[n].nan_to_num()) for n in first]
    assert all(equal) and first.keys() == again.keys()
    assert not torch.equal(*(next(t for t in i.values() if t.is_floating_point())
                             for i in (first, other)))  # fmt: skip


@pytest.mark.parametrize(("op", "cell"), _cells())
def test_candidate_is_as_exact_as_stock_and_touches_nothing_else(op: str, cell: int) -> None:
    case = CASES[op]
    inputs = case.inputs(case.regimes()[cell], 7)
    truth, stock = case.reference(_copy(inputs)), case.stock(_copy(inputs))
    variant, found = case.stock_variant(_copy(inputs)), case.candidate(_copy(inputs))
    assert set(truth) == set(stock) == set(variant) == set(found) == set(case.outputs)
    for name, axes in case.outputs.items():
        assert found[name].dim() == len(axes)
        if name == "untouched":
            assert _same_bits(found[name], stock[name])
            continue
        assert truth[name].dtype == torch.float64
        assert found[name].dtype == stock[name].dtype == torch.float32
        yardstick = max(_error(stock[name], truth[name]), _error(variant[name], truth[name]))
        assert _error(found[name], truth[name]) < LIMIT * yardstick, name


# ---- abilities ----------------------------------------------------------------------------------

SOME = [(op, n) for op, case in CASES.items() for n in _edges(case)]


@pytest.mark.parametrize(("op", "cell"), SOME)
def test_what_pads_changes_no_bit(op: str, cell: int) -> None:
    case = CASES[op]
    inputs = case.inputs(case.regimes()[cell], 5)
    other = case.other_padding(_copy(inputs), 6)
    poisoned = {name for name in inputs.keys() - common.ACTIVATIONS if inputs[name].isnan().any()}
    assert poisoned == {name for name in inputs if not _same_bits(inputs[name], other[name])}
    first, found = case.candidate(_copy(inputs)), case.candidate(other)
    assert all(_same_bits(first[n], found[n]) for n in case.outputs if n != "untouched")


@pytest.mark.parametrize(("op", "cell"), SOME)
def test_rows_may_come_in_any_order(op: str, cell: int) -> None:
    case = CASES[op]
    inputs = case.inputs(case.regimes()[cell], 5)
    order = torch.randperm(common.requests(case.regimes()[cell]))
    mixed = _copy(inputs)
    for name, axis in case.input_rows.items():
        mixed[name] = inputs[name].index_select(axis, order)
    first, found = case.candidate(_copy(inputs)), case.candidate(mixed)
    for name, axis in case.output_rows.items():
        wanted = first[name].index_select(axis, order)
        torch.testing.assert_close(found[name], wanted, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("op", "cell"), [one for one in SOME if one[0] != "final"])
def test_other_scalars_give_other_results_that_are_right(op: str, cell: int) -> None:
    case = CASES[op]
    inputs = case.inputs(case.regimes()[cell], 5)
    other = case.other_scalars(_copy(inputs), 6)
    shapes = {name: (one.shape, one.dtype) for name, one in inputs.items()}
    assert {name: (one.shape, one.dtype) for name, one in other.items()} == shapes
    truth, stock = case.reference(_copy(other)), case.stock(_copy(other))
    found = case.candidate(_copy(other))
    for name in case.outputs:
        if name == "untouched":
            assert _same_bits(found[name], stock[name])
        else:
            yardstick = LIMIT * _error(stock[name], truth[name])
            assert _error(found[name], truth[name]) < 2 * yardstick


@pytest.mark.parametrize(("op", "cell"), SOME)
def test_every_fault_shows_by_far(op: str, cell: int) -> None:
    case = CASES[op]
    regime = case.regimes()[cell]
    inputs = case.inputs(regime, 5)
    truth, stock = case.reference(_copy(inputs)), case.stock(_copy(inputs))
    for fault in case.faults(regime):
        planted = case.planted(fault, _copy(inputs))
        names = [name for name in case.outputs if name != "untouched"]
        assert any(
            _error(planted[name], truth[name]) > 10 * LIMIT * _error(stock[name], truth[name])
            for name in names
        ), fault


@pytest.mark.parametrize("op", CASES)
def test_neighbours_are_regimes_one_step_away(op: str) -> None:
    case = CASES[op]
    for regime in case.regimes():
        for other in case.neighbours(regime):
            assert other.keys() == regime.keys()
            assert sum(abs(other[name] - regime[name]) for name in regime) == 1
    smallest = case.neighbours(case.regimes()[0])
    case.candidate(case.inputs(smallest[0], 1))


@pytest.mark.parametrize("op", [op for op in CASES if op != "step"])
def test_work_grows_with_the_batch(op: str) -> None:
    case = CASES[op]
    first, last = (case.work(case.regimes()[n]) for n in (0, len(common.BATCHES) - 1))
    assert 0 < first["bytes"] < last["bytes"] and 0 < first["flops"] < last["flops"]


@pytest.mark.parametrize("op", CASES)
def test_candidate_repeats_bit_for_bit(op: str) -> None:
    case = CASES[op]
    inputs = case.inputs(case.regimes()[2], 3)
    first, again = case.candidate(_copy(inputs)), case.candidate(_copy(inputs))
    for name in case.outputs:
        assert torch.equal(first[name].nan_to_num(), again[name].nan_to_num())


@pytest.mark.parametrize("op", ["kda", "mla", "step"])
def test_rows_nobody_owns_are_poisoned(op: str) -> None:
    # Without poison, `untouched` and the finite outputs would prove nothing.
    case = CASES[op]
    inputs = case.inputs(case.regimes()[1], 0)
    assert torch.isnan(case.stock(inputs)["untouched"]).any()


def test_the_measure_sees_a_small_fault() -> None:
    case = CASES["kda"]
    inputs = case.inputs(case.regimes()[0], 0)
    truth, stock = case.reference(_copy(inputs)), case.stock(_copy(inputs))
    inputs["self_attn.dt_bias"] *= 1.0 + 1e-4
    fault = case.candidate(_copy(inputs))
    limit = LIMIT * _error(stock["state"], truth["state"])
    assert _error(fault["state"], truth["state"]) > limit


def test_a_write_to_the_null_slot_would_show() -> None:
    case = CASES["kda"]
    inputs = case.inputs(case.regimes()[3], 0)
    honest = case.stock(_copy(inputs))["untouched"]
    assert torch.isnan(honest[0]).all()  # slot 0 comes first
    inputs["conv"][0, 0, 0] = 1.0
    assert not torch.isnan(case.stock(_copy(inputs))["untouched"][0]).all()
