"""The GPU cases' own arithmetic, as far as it can be judged without a GPU.

Protects the referee's verdicts from a case that is wrong itself: under hostile rows stock and truth
agree, so that what differs is the kernel's; the planted faults of a case change what it computes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fasttrack.correctness import arrays
from fasttrack.correctness.arrays import Packed
from fasttrack.correctness.compare import error_stats
from fasttrack.correctness.kernels import cell_id
from kimi_k3.cases.gpu import cases

Tensors = dict[str, Tensor]
CASES: dict[str, Any] = {case.op: case for case in cases()}
LIMIT = 0.25
"""Of stock's error over the size of the truth: the referee's own."""


def _small(op: str) -> list[dict[str, int]]:
    """A few cells that a CPU is done with in a second."""
    regimes = [dict(one) for one in CASES[op].regimes()]
    if op == "mla_core":
        return [one for one in regimes if one["batch"] in (4, 9) or one["null"] or one["fp8"]][:12]
    if op == "mla_query":
        return [one for one in regimes if one["fp8"] or one["null"]][:6]
    if op == "attn_res":
        return [one for one in regimes if one["batch"] == 3][1::3]
    return [one for one in regimes if one["rows"] in (1, 5)]


CELLS = [
    (op, regime) for op in ("mla_core", "mla_query", "mla_value", "attn_res")
    for regime in _small(op)
]  # fmt: skip


def _packed(tensors: Tensors) -> dict[str, Packed]:
    return {
        name: Packed(
            str(one.dtype).removeprefix("torch."), tuple(one.shape),
            one.contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
        )
        for name, one in tensors.items()
    }  # fmt: skip


def _tensors(packed: dict[str, Packed]) -> Tensors:
    made = {}
    for name, one in packed.items():
        dtype = getattr(torch, one.dtype)
        flat = torch.frombuffer(bytearray(one.data), dtype=torch.uint8)
        made[name] = flat.view(dtype).view(one.shape)
    return made


def _copy(inputs: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in inputs.items()}


@pytest.mark.parametrize(("op", "regime"), CELLS, ids=[cell_id(*cell) for cell in CELLS])
def test_stock_and_truth_agree_under_hostile_rows(op: str, regime: dict[str, int]) -> None:
    case = CASES[op]
    benign = case.inputs(regime, 0)
    inputs = _tensors(arrays.hostile(_packed(benign), case.input_rows, 0))
    truth, stock = case.reference(_copy(inputs)), case.stock(_copy(inputs))
    for name in set(truth) - {"untouched"}:
        exact = truth[name].double().numpy()
        assert np.isfinite(exact).all(), name
        dtype = str(stock[name].dtype).removeprefix("torch.")
        error = error_stats(stock[name].double().numpy(), exact, case.outputs[name], dtype)
        assert error.nonfinite == 0 and error.rms is not None and error.rms < LIMIT, (name, error)


@pytest.mark.parametrize(("op", "regime"), CELLS, ids=[cell_id(*cell) for cell in CELLS])
def test_planted_faults_change_the_result(op: str, regime: dict[str, int]) -> None:
    case = CASES[op]
    inputs = case.inputs(regime, 0)
    stock = case.stock(_copy(inputs))
    for fault in case.faults(regime):
        made = case.planted(fault, _copy(inputs))
        assert any(not torch.equal(made[name], stock[name]) for name in set(made) - {"untouched"})
