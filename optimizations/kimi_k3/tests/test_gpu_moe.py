"""What the referee's cells of the expert half cannot show: all 896 experts, rows of odd logits.

Protects: experts found by number in 2 GB of weights; that weights repacked as vLLM's back end has
them give the bits of the checkpoint's, whatever is beside a launch; the choice of experts where
logits are equal, infinite or NaN, and on random rows against FP32. Needs a GPU and CuTe DSL.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("cutlass")

from kimi_k3.bench.moe import weights, weights_repacked  # noqa: E402 - needs CuTe DSL
from kimi_k3.cases.gpu.experts import ExpertsCase  # noqa: E402
from kimi_k3.kernels.gpu import Bound  # noqa: E402
from kimi_k3.kernels.moe import launch  # noqa: E402
from kimi_k3.kernels.moe.inbox import inbox  # noqa: E402
from kimi_k3.kernels.moe.launch import EXPERTS, LATENT, TOP_K  # noqa: E402
from kimi_k3.kernels.moe.mxfp4 import repacked, repacked_scales  # noqa: E402
from kimi_k3.kernels.oproj.mailbox import loop_back  # noqa: E402
from kimi_k3.reference.moe import route  # noqa: E402

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_all_experts(batch: int) -> None:
    ids = torch.stack([torch.randperm(EXPERTS, device="cuda")[:TOP_K] for _ in range(batch)]).int()
    ids[0, :2] = torch.tensor([0, EXPERTS - 1])
    ids[0, 2:] = torch.arange(1, TOP_K - 1)
    gains = torch.rand(batch, TOP_K, device="cuda")
    z = torch.randn(batch, LATENT, device="cuda").bfloat16()
    inputs = {"z": z, "ids": ids, "gains": gains, **weights()}
    case = ExpertsCase()
    found, truth = case.candidate(inputs)["y"].double(), case.reference(inputs)["y"]
    assert float((found - truth).norm() / truth.norm()) < 4e-3


REPLAYS = 20


def _in_place(
    z: Tensor, ids: Tensor, gains: Tensor, weights: dict[str, Tensor], count: int = EXPERTS
) -> Tensor:
    """[B, L] by the kernel that reads repacked weights."""
    kernel, y = launch.repacked_experts(len(z), count), torch.empty_like(z)
    slots = gains.new_full((len(z), TOP_K, LATENT), NAN)
    Bound(kernel, z=z, ids=ids, gains=gains, slots=slots, inbox=inbox(kernel.routed), **weights)()
    Bound(launch.finalize(len(z), count), slots=slots, ids=ids, y=y)()
    return y


@pytest.mark.parametrize("batch", [1, 2, 4, 8, 64])
def test_all_experts_repacked(batch: int) -> None:
    ids = torch.stack([torch.randperm(EXPERTS, device="cuda")[:TOP_K] for _ in range(batch)]).int()
    ids[0, :2] = torch.tensor([0, EXPERTS - 1])
    ids[0, 2:] = torch.arange(1, TOP_K - 1)
    gains = torch.rand(batch, TOP_K, device="cuda")
    z = torch.randn(batch, LATENT, device="cuda").bfloat16()
    truth = ExpertsCase().reference({"z": z, "ids": ids, "gains": gains, **weights()})["y"]
    found = _in_place(z, ids, gains, weights_repacked())
    assert float((found.double() - truth).norm() / truth.norm()) < 4e-3


def _moved(tensor: Tensor, axis: int) -> Tensor:
    """Every 32 along an axis in the order in which the kernel of the checkpoint's layout takes
    what the other takes as it lies: its instructions multiply the same numbers."""
    column = torch.arange(32, device=tensor.device)
    half, eighth, lane, parity = column // 16, column % 16 // 8, column % 8 // 2, column % 2
    place = 8 * lane + half + 2 * eighth + 4 * parity
    split = tensor.unflatten(axis, (-1, 32))
    axis = axis % tensor.ndim + 1
    return torch.empty_like(split).index_copy_(axis, place, split).flatten(axis - 1, axis)


def _packed(codes: Tensor) -> Tensor:
    return codes[..., 0::2] | codes[..., 1::2] << 4


@pytest.mark.parametrize("count", [24, 64])
@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8, 9, 16, 33, 64])
def test_repacked_weights_give_the_bits_of_the_checkpoints(batch: int, count: int) -> None:
    case = ExpertsCase()
    padding = 1 if batch in (3, 16) else 0
    inputs = case.inputs({"batch": batch, "experts": count, "padding": padding}, batch)
    one = {name: tensor.cuda() for name, tensor in inputs.items()}
    held = {name: repacked(one[name]) for name in ("w13", "w2")}
    held |= {name: repacked_scales(one[name]) for name in ("s13", "s2")}
    w13, w2 = (
        torch.stack((one[name] & 15, one[name] >> 4), dim=-1).flatten(-2) for name in ("w13", "w2")
    )
    same = one | {
        "z": _moved(one["z"], -1),
        "w13": _packed(_moved(_moved(w13, -1), -2)),
        "s13": _moved(one["s13"], -2).contiguous(),
        "w2": _packed(_moved(w2, -1)),
    }
    wanted = case.candidate({name: tensor.contiguous() for name, tensor in same.items()})["y"]
    live = batch - padding
    step = one["z"], one["ids"], one["gains"]
    for _ in range(REPLAYS):
        found = _in_place(*step, held, count)
        assert torch.equal(found[:live], wanted[:live])
    assert bool((found[live:] == 0).all())
    truth = case.reference(dict(one))["y"]
    assert float((found.double() - truth).norm() / truth.norm()) < 4e-3


def _routed(logits: Tensor, bias: Tensor, live: int | None = None) -> tuple[Tensor, Tensor]:
    """Numbers and weights that the kernel chooses, of logits put into its mailbox."""
    batch = len(logits)
    exchange = launch.front_exchange(EXPERTS, LATENT, 1)
    (end,) = loop_back(exchange)
    end.mailbox[0, 0, :batch].zero_()
    end.mailbox[0, 0, :batch, : 2 * EXPERTS] = logits.contiguous().view(torch.bfloat16)
    ids = torch.full((batch, TOP_K), -7, dtype=torch.int32, device="cuda")
    gains = torch.full((batch, TOP_K), NAN, device="cuda")
    rows = torch.tensor([batch if live is None else live], dtype=torch.int32, device="cuda")
    z = torch.empty(batch, LATENT, device="cuda", dtype=torch.bfloat16)
    Bound(launch.route(EXPERTS, LATENT, batch, exchange), mailbox=end.mailbox, turn=end.turn,
          bias=bias, rows=rows, ids=ids, gains=gains, z=z)()  # fmt: skip
    end.check()
    assert bool((end.mailbox[:, :, :batch].view(torch.int16) == -1).all())
    assert bool((z == 0).all())
    return ids, gains


def test_the_choice_is_that_of_fp32_on_random_rows() -> None:
    torch.manual_seed(0)
    logits, bias = torch.randn(64, EXPERTS, device="cuda"), torch.randn(EXPERTS, device="cuda") / 20
    ids, gains = _routed(logits, bias)
    wanted = route(logits, bias, TOP_K, 1.0)
    keys = (torch.sigmoid(logits) + bias).sort(-1, descending=True).values
    clear = keys[:, TOP_K - 1] - keys[:, TOP_K] > 1e-6
    assert int(clear.sum()) > 60
    assert torch.equal(ids.sort(-1).values[clear].long(), wanted.ids.sort(-1).values[clear])
    torch.testing.assert_close(
        gains.sort(-1).values[clear], wanted.weights.sort(-1).values[clear], rtol=1e-5, atol=0
    )


def test_ties_go_to_lower_numbers_and_odd_rows_choose_experts_that_exist() -> None:
    logits = torch.randn(8, EXPERTS, device="cuda")
    logits[0] = 0.0
    logits[1] = NAN
    logits[2] = INF
    logits[3] = -INF
    logits[4, ::2] = NAN
    logits[5, 100:130] = 50.0  # scores of one: equal keys
    logits[6, -1] = INF
    logits[7, : EXPERTS - 3] = NAN
    bias = torch.zeros(EXPERTS, device="cuda")
    ids, gains = _routed(logits, bias)
    assert bool(((ids >= 0) & (ids < EXPERTS)).all())
    assert all(len(row.unique()) == TOP_K for row in ids)
    for row in (0, 1, 2, 3):
        assert ids[row].tolist() == list(range(TOP_K))
    assert bool((ids[4] % 2 == 1).all()) and ids[5].tolist() == list(range(100, 116))
    assert ids[6, 0] == EXPERTS - 1
    assert sorted(ids[7].tolist()) == [*range(TOP_K - 3), *range(EXPERTS - 3, EXPERTS)]
    for row in (0, 2, 5):
        torch.testing.assert_close(gains[row], torch.full((TOP_K,), 1 / TOP_K, device="cuda"))


def test_padding_rows_have_no_experts() -> None:
    ids, gains = _routed(
        torch.randn(5, EXPERTS, device="cuda"), torch.zeros(EXPERTS, device="cuda"), 2
    )
    assert bool((ids[2:] == -1).all()) and bool((gains[2:] == 0).all())
    assert bool((ids[:2] >= 0).all())
