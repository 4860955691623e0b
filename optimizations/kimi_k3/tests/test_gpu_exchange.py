"""The exchanges between ranks on one GPU: payloads, numbers of ranks, late ranks, lost ranks.

Protects: every BF16 number survives a mailbox, NaN, infinities and zeros included; what is sent
is summed in rank order; nothing of an earlier exchange, of another batch for one, is taken for
this one's; with any number of ranks, whoever comes late, bits are the same; a lost rank ends in NaN
and an error, not in a hang. Needs a GPU and CuTe DSL.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from kimi_k3.cases.gpu.moe_front import FrontCase
from kimi_k3.cases.gpu.moe_tail import TailCase
from kimi_k3.cases.gpu.oproj import OProjCase

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("cutlass")

from kimi_k3.kernels.attn_res.kernel import Site  # noqa: E402 - needs CuTe DSL
from kimi_k3.kernels.gpu import Bound  # noqa: E402
from kimi_k3.kernels.oproj.form import Exchange  # noqa: E402
from kimi_k3.kernels.oproj.launch import collect, publish  # noqa: E402
from kimi_k3.kernels.oproj.mailbox import End, PeerLostError, loop_back  # noqa: E402

HIDDEN, BLOCKS, WIDTH = 7168, 8, 768
RANKS = (2, 4, 8, 16)
CELLS = [(op, ranks, batch) for op in ("oproj", "front", "tail") for ranks in RANKS
         for batch in (1, 64)]  # fmt: skip
LATE_S = 0.003
LIMIT = 1.25
"""Of error over stock's, root mean square: the harness's own limit."""


def _taking(end: End, batch: int, delta: Any = "restart") -> Bound:
    """A collector with buffers of its own; no stored block is mixed in."""
    site = Site(HIDDEN, batch, BLOCKS, 0, delta, False, 1e-5)
    row = torch.zeros(batch, HIDDEN, device="cuda", dtype=torch.bfloat16)
    vector = torch.ones(HIDDEN, device="cuda")
    return Bound(
        collect(site, end.exchange), prefix=row, y=torch.empty_like(row), mailbox=end.mailbox,
        turn=end.turn, bank=row[:, None].repeat(1, BLOCKS, 1), score=vector, gain=vector.clone(),
    )  # fmt: skip


def _sending(end: End, x: Tensor, w: Tensor) -> Bound:
    kernel = publish(x.shape[1], len(x), end.exchange)
    return Bound(kernel, x=x, w=w, peers=end.peers, turn=end.turn)


def _patterns() -> Tensor:
    """All numbers of BF16 but the NaN that rounding never gives."""
    words = torch.arange(-(1 << 15), 1 << 15, device="cuda").to(torch.int16)
    return words[words != -1].view(torch.bfloat16)


def test_every_number_survives_a_mailbox_and_the_sum() -> None:
    (end,) = loop_back(Exchange(1, HIDDEN, 16))
    sent = torch.zeros(10 * HIDDEN, device="cuda", dtype=torch.bfloat16)
    patterns = _patterns()
    sent[: len(patterns)] = patterns
    end.mailbox[0, 0, :10].copy_(sent.view(10, HIDDEN))
    take = _taking(end, 10)
    take()
    end.check()
    found = take.tensors["prefix"].flatten()
    real = ~sent.isnan()
    assert torch.equal(found.view(torch.int16)[real], sent.view(torch.int16)[real])
    assert bool(found[~real].isnan().all())
    assert bool((end.mailbox.view(torch.int16) == -1).all())


@pytest.mark.parametrize("ranks", [3, *RANKS])
def test_sums_go_by_rank_in_fp32(ranks: int) -> None:
    ends = loop_back(Exchange(ranks, HIDDEN, 4))
    shares = torch.randn(ranks, 4, HIDDEN, device="cuda").bfloat16() * 100
    shares[:, 0, 0] = torch.tensor(-0.0)
    shares[0, 0, 1], shares[1, 0, 1] = float("inf"), float("-inf")
    shares[0, 0, 2] = float("inf")
    ends[0].mailbox[0, :, :4].copy_(shares)
    take = _taking(ends[0], 4)
    take()
    wanted = shares[0].float()
    for share in shares[1:]:
        wanted = wanted + share.float()
    found = take.tensors["prefix"]
    assert torch.equal(found.nan_to_num(7.0), wanted.bfloat16().nan_to_num(7.0))
    assert bool(found[0, 1].isnan()) and found[0, 2] == float("inf")
    assert bool(torch.signbit(found[0, 0]))


def test_negative_zero_and_nan_come_out_of_the_projection_as_they_are() -> None:
    (end,) = loop_back(Exchange(1, HIDDEN, 2))
    x = torch.zeros(2, WIDTH, device="cuda", dtype=torch.bfloat16)
    w = torch.zeros(HIDDEN, WIDTH, device="cuda", dtype=torch.bfloat16)
    x[0, 0], w[:, 0] = -(2.0**-60), 2.0**-75  # below half the least BF16: rounds to -0.0
    x[1] = float("nan")
    _sending(end, x, w)()
    take = _taking(end, 2)
    take()
    end.check()
    found = take.tensors["prefix"]
    assert bool((found[0] == 0).all()) and bool(found[1].isnan().all())
    assert bool(torch.signbit(found[0]).all())


@pytest.mark.parametrize("ranks", [1, *RANKS])
def test_batches_of_changing_size_leave_nothing_behind(ranks: int) -> None:
    ends = loop_back(Exchange(ranks, HIDDEN, 64))
    w = torch.randn(ranks, HIDDEN, WIDTH, device="cuda").bfloat16() * WIDTH**-0.5
    for batch in (8, 9, 1, 64, 33, 16, 17, 2, 64, 1):
        x = torch.randn(ranks, batch, WIDTH, device="cuda").bfloat16()
        taking = [_taking(end, batch) for end in ends]
        for end, mine, own in zip(ends, x, w, strict=True):
            _sending(end, mine, own)()
        for take in taking:
            take()
        wanted = (x.double() @ w.double().transpose(1, 2)).sum(0)
        for end, take in zip(ends, taking, strict=True):
            end.check()
            assert torch.equal(take.tensors["prefix"], taking[0].tensors["prefix"])
            error = (take.tensors["prefix"].double() - wanted).norm() / wanted.norm()
            assert float(error) < 5e-3
            assert bool((end.mailbox.view(torch.int16) == -1).all())


def _case(op: str, ranks: int, batch: int) -> tuple[Any, dict[str, Tensor]]:
    """A case and its inputs for so many ranks."""
    case: Any = {"oproj": OProjCase, "front": FrontCase, "tail": TailCase}[op]()
    regime = {"ranks": ranks, "apart": 0, "padding": batch // 9, "batch": batch}
    if op == "oproj":
        case.ranks = ranks
        regime = {"heads": 6, "sources": 4, "restart": 0, "padding": batch // 9, "batch": batch}
    return case, {name: tensor.cuda() for name, tensor in case.inputs(regime, 3).items()}


def _delays(ranks: int) -> list[list[float]]:
    """The first, the last, all but the first late; each later than the one before, and the other
    way round; three times at random."""
    others = [0.0] * (ranks - 1)
    stairs = [LATE_S * rank / ranks for rank in range(ranks)]
    drawn = random.Random(ranks)
    chance = [[drawn.uniform(0, LATE_S) for _ in range(ranks)] for _ in range(3)]
    ends = [[LATE_S, *others], [*others, LATE_S], [0.0, *([LATE_S] * (ranks - 1))]]
    return [*ends, stairs, stairs[::-1], *chance]


@pytest.mark.parametrize(("op", "ranks", "batch"), CELLS)
def test_any_number_of_ranks_is_right_and_a_late_one_changes_no_bit(
    op: str, ranks: int, batch: int
) -> None:
    case, inputs = _case(op, ranks, batch)
    truth, stock = case.reference(inputs), case.stock(inputs)
    wanted = case.candidate(inputs)
    for name in wanted:
        error, own = (
            math.sqrt(float((made[name].double() - truth[name]).square().mean()))
            for made in (wanted, stock)
        )
        assert error <= LIMIT * own, f"{name}: {error:.3g}, stock {own:.3g}"
    assert all(bool(tensor.isfinite().all()) for tensor in wanted.values())
    for delays in _delays(ranks):
        found = case.candidate_skewed(inputs, delays)
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items()), delays


def test_a_lost_rank_ends_in_nan_and_an_error_and_the_exchange_can_be_cleared() -> None:
    ends = loop_back(Exchange(2, HIDDEN, 4, looks=1000))
    x = torch.randn(4, WIDTH, device="cuda").bfloat16()
    w = torch.randn(HIDDEN, WIDTH, device="cuda").bfloat16()
    _sending(ends[0], x, w)()
    take = _taking(ends[0], 4)
    take()
    assert bool(take.tensors["prefix"].isnan().all()) and bool(take.tensors["y"].isnan().all())
    with pytest.raises(PeerLostError):
        ends[0].check()
    for end in ends:
        end.clear()
    for end in ends:
        _sending(end, x, w)()
    take()
    ends[0].check()
    assert not bool(take.tensors["prefix"].isnan().any())
