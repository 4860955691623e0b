"""Arithmetic of the GPU cases of the expert half, on a CPU.

Protects: what the kernels are judged by. The truth of a case is the reference model's; stock's own
arithmetic is near it, and each planted fault is far from it. Late ranks in a loop-back cannot wait
for what one GPU has no way to run: nothing waits ahead of its senders, or in all the room there is.
Needs no GPU.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kimi_k3.cases.gpu.common import BATCHES, Arrival, arrivals
from kimi_k3.cases.gpu.experts import BETA, LINEAR_BETA, ExpertsCase
from kimi_k3.cases.gpu.moe_front import TOP_K, FrontCase
from kimi_k3.cases.gpu.moe_tail import COLLECT, NORM, TailCase, waits
from kimi_k3.kernels.moe.mxfp4 import dequantised
from kimi_k3.kernels.projection.form import H200
from kimi_k3.reference.basic import situ

Case = ExpertsCase | FrontCase | TailCase
CASES: tuple[tuple[Case, dict[str, int]], ...] = (
    (ExpertsCase(), {"batch": 3, "experts": 16, "padding": 1}),
    (FrontCase(), {"batch": 2, "ranks": 2, "apart": 0, "padding": 1}),
    (TailCase(), {"batch": 2, "ranks": 2, "padding": 1}),
)
FAR = 3.0
"""Times stock's own error that a fault must be away from the truth."""


def _error(found: Tensor, wanted: Tensor) -> float:
    return math.sqrt(float((found.double() - wanted.double()).square().mean()))


@pytest.mark.parametrize(("case", "regime"), CASES, ids=lambda one: getattr(one, "op", ""))
def test_stock_is_near_the_truth_and_every_fault_is_far(case: Case, regime: dict[str, int]) -> None:
    inputs = case.inputs(regime, 1)
    truth, stock = case.reference(dict(inputs)), case.stock(dict(inputs))
    for name, wanted in truth.items():
        assert bool(wanted.isfinite().all()) and bool((wanted[-1] == 0).all())
        assert _error(stock[name], wanted) < 0.02 * float(wanted.square().mean().sqrt())
    for fault in case.faults(regime):
        planted = case.planted(fault, dict(inputs))
        shares = [
            _error(planted[name], truth[name]) / max(_error(stock[name], truth[name]), 1e-12)
            for name in truth
        ]
        assert max(shares) > FAR, fault


def test_experts_are_those_of_the_reference() -> None:
    case = ExpertsCase()
    inputs = case.inputs({"batch": 1, "experts": 16, "padding": 0}, 2)
    wanted = torch.zeros(inputs["z"].shape[1], dtype=torch.float64)
    for number, gain in zip(inputs["ids"][0].tolist(), inputs["gains"][0], strict=True):
        w13, w2 = (
            dequantised(inputs[w][number], inputs[s][number], torch.float64)
            for w, s in (("w13", "s13"), ("w2", "s2"))
        )
        gate, up = (w13 @ inputs["z"][0].double()).chunk(2)
        wanted += gain.double() * (w2 @ situ(gate, up, BETA, LINEAR_BETA))
    torch.testing.assert_close(case.reference(inputs)["y"][0], wanted)


def test_rows_of_the_front_have_as_many_experts_as_they_should_and_clear_ones() -> None:
    case = FrontCase()
    inputs = case.inputs({"batch": 4, "ranks": 8, "apart": 0, "padding": 0}, 3)
    truth, stock = case.reference(inputs)["gains"], case.stock(inputs)["gains"]
    assert bool(((truth > 0).sum(1) == TOP_K).all())
    assert torch.equal(truth > 0, stock > 0)


def _starving(order: list[Arrival], last: int) -> list[Arrival]:
    """Waits, steps `last`, that are launched ahead of something they wait for."""
    return [
        one
        for place, one in enumerate(order)
        if one.step == last and any(other.step < last for other in order[place:])
    ]


@pytest.mark.parametrize("delays", [[0.0, 0.0], [5e-3, 0.0, 5e-3, 0.0], [0.1, 0.3, 0.2]])
def test_no_wait_is_launched_ahead_of_what_it_waits_for(delays: list[float]) -> None:
    order = arrivals(delays, 0, NORM)
    assert sorted((one.rank, one.step) for one in order) == [
        (rank, step) for rank in range(len(delays)) for step in range(NORM)
    ]
    assert not _starving(order, NORM - 1)
    # As it was once: the early rank with all its steps first.
    early = [one for one in order if one.rank == order[0].rank]
    assert _starving([*early, *(one for one in order if one not in early)], NORM - 1)


def test_ranks_are_as_late_with_every_step_as_they_should_be() -> None:
    late = arrivals([2e-3, 0.0, 5e-3], 0, 2)
    assert [(one.rank, one.step) for one in late[:3]] == [(1, 0), (0, 0), (2, 0)]
    assert [one.pause_s for one in late] == [0.0, 2e-3, pytest.approx(3e-3), 0.0, 0.0, 0.0]


@pytest.mark.parametrize("batch", BATCHES)
def test_blocks_of_the_tail_that_wait_leave_whole_multiprocessors(batch: int) -> None:
    blocks = {NORM: batch, COLLECT: 7 * batch}
    assert all(blocks[step] < H200.multiprocessors // 2 for step in waits(batch))
