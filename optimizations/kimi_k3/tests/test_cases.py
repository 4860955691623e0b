"""The kernel cases keep their protocol and mean something.

Protects: what the harness relies on (seeds, names, dtypes, poison), the compiled units (every
cell here runs them), and that the measure used here sees a planted fault.
"""

from __future__ import annotations

import math

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
    assert found.shape == wanted.shape
    assert torch.isfinite(wanted).all()
    return math.sqrt(float((found.double() - wanted).square().mean()))


def _cells() -> list[tuple[str, int]]:
    return [(op, n) for op, case in CASES.items() for n in range(len(case.regimes()))]


def test_the_ops_of_the_claim_have_cases() -> None:
    assert {"kda", "mla", "moe"} <= set(CASES)


@pytest.mark.parametrize("op", CASES)
def test_every_batch_boundary_is_a_cell(op: str) -> None:
    batches = {regime["batch"] for regime in CASES[op].regimes()}
    assert batches == set(common.BATCHES) or op == "step"


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
            same = found[name].view(torch.int32) == stock[name].view(torch.int32)
            assert same.all()
            continue
        assert truth[name].dtype == torch.float64
        assert found[name].dtype == stock[name].dtype == torch.float32
        yardstick = max(_error(stock[name], truth[name]), _error(variant[name], truth[name]))
        assert _error(found[name], truth[name]) < LIMIT * yardstick, name


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
    regime = case.regimes()[3]
    inputs = case.inputs(regime, 0)
    honest = case.stock(_copy(inputs))["untouched"]
    assert torch.isnan(honest[0]).all()  # slot 0 comes first
    inputs["conv"][0, 0, 0] = 1.0
    assert not torch.isnan(case.stock(_copy(inputs))["untouched"][0]).all()
