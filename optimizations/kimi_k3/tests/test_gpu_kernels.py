"""The GPU kernels against FP64, their bits from call to call, and in captured graphs.

Protects: every regime of every GPU case, with stock's own error as the yardstick; replays on other
content; what padding holds. Needs an NVIDIA GPU of compute capability 9.0 or later and CuTe DSL.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kimi_k3.cases.gpu import cases

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("cutlass")

Tensors = dict[str, Tensor]
CASES = {case.op: case for case in cases()}
CELLS = [(op, n) for op, case in CASES.items() for n in range(len(case.regimes()))]
# Of error over stock's, root mean square: the harness's own limit.
LIMIT = 1.25
REPEATS = 20


def _name(cell: tuple[str, int]) -> str:
    regime = CASES[cell[0]].regimes()[cell[1]]
    return cell[0] + "/" + ",".join(f"{name}={value}" for name, value in regime.items())


def _inputs(op: str, cell: int, seed: int) -> Tensors:
    case = CASES[op]
    return {n: t.cuda() for n, t in case.inputs(case.regimes()[cell], seed).items()}


def _copy(inputs: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in inputs.items()}


def _error(found: Tensor, wanted: Tensor) -> float:
    return math.sqrt(float((found.double() - wanted.double()).square().mean()))


def _same_bits(one: Tensors, other: Tensors) -> bool:
    return all(torch.equal(one[name].nan_to_num(7.0), other[name].nan_to_num(7.0)) for name in one)


@pytest.mark.parametrize("cell", CELLS, ids=_name)
def test_as_exact_as_stock_the_same_bits_again_and_in_a_replayed_graph(
    cell: tuple[str, int],
) -> None:
    case: Any = CASES[cell[0]]
    inputs = _inputs(*cell, 7)
    truth, stock = case.reference(_copy(inputs)), case.stock(_copy(inputs))
    found = case.candidate(_copy(inputs))
    for name, tensor in found.items():
        assert tensor.dtype == stock[name].dtype and tensor.shape == stock[name].shape
        if name == "untouched":
            assert _same_bits({name: tensor}, {name: stock[name]})
        else:
            error, own = (_error(one[name], truth[name]) for one in (found, stock))
            assert error <= LIMIT * own, f"{name}: {error:.3g}, stock {own:.3g}"
    for _ in range(REPEATS):
        assert _same_bits(case.candidate(_copy(inputs)), found)
    padded = {n: t.cuda() for n, t in case.other_padding(inputs, 1).items()} if hasattr(
        case, "other_padding"
    ) else inputs  # fmt: skip
    again = case.candidate(_copy(padded))
    assert _same_bits({n: t for n, t in again.items() if n != "untouched"}, found)

    buffers = _copy(inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = case.candidate(buffers)
    other = _inputs(*cell, 8)
    for content in (inputs, other):
        for name, tensor in content.items():
            buffers[name].copy_(tensor)
        graph.replay()
        torch.cuda.synchronize()
        assert _same_bits(replayed, case.candidate(_copy(content)))
