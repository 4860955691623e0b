"""Parts of a layer of vLLM's Kimi K3 that are ours, in a graph, on plain modules in vLLM's place.

Protects: that kernels beside each other on two streams change no bit, that no weight is copied
where it is read in place, and that the mix site tells whether what is behind it may begin early.
Needs an NVIDIA GPU of compute capability 9.0 and CuTe DSL; no vLLM.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("cutlass")

from kimi_k3.intree.experts import Kept, kept, located  # noqa: E402
from kimi_k3.intree.layer import MixSite, MlaHalf, Moe, Shared  # noqa: E402
from kimi_k3.intree.ranks import Ranks, exchanges  # noqa: E402
from kimi_k3.kernels.moe.mxfp4 import repacked, repacked_scales  # noqa: E402

EXPERTS, LATENT, INTER, HIDDEN, WIDTH = 896, 3584, 384, 7168, 768
LAYERS, REPLAYS = 3, 20


def _weight(*shape: int) -> Tensor:
    return (torch.randn(*shape, device="cuda") * shape[-1] ** -0.5).bfloat16()


def _linear(*shape: int) -> Any:
    return SimpleNamespace(weight=torch.nn.Parameter(_weight(*shape), requires_grad=False))


class _Norm:
    """What vLLM's RMSNorm is for ours."""

    variance_epsilon = 1e-5

    def __init__(self) -> None:
        self.weight = torch.ones(LATENT, device="cuda").bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        return _norm(x)


def _norm(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).bfloat16()


class _SharedExperts:
    """What vLLM's module is for ours: weights, and a call."""

    def __init__(self) -> None:
        self.gate_up_proj, self.down_proj = _linear(2 * WIDTH, HIDDEN), _linear(HIDDEN, WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = torch.mm(x, self.gate_up_proj.weight.t()).float().chunk(2, dim=-1)
        active = 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * 25 * torch.tanh(up / 25)
        return torch.mm(active.bfloat16(), self.down_proj.weight.t())


@pytest.fixture(scope="module")
def moe() -> Moe:
    torch.manual_seed(0)
    gate = _linear(EXPERTS, HIDDEN)
    bias = 0.05 * torch.randn(EXPERTS, device="cuda")
    gate.e_score_correction_bias = torch.nn.Parameter(bias)
    module = SimpleNamespace(
        gate=gate, routed_expert_down_proj=_linear(LATENT, HIDDEN), routed_expert_norm=_Norm(),
        routed_expert_up_proj=_linear(HIDDEN, LATENT), shared_experts=_SharedExperts(),
    )  # fmt: skip

    def bytes_(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, device="cuda")

    weights = Kept(
        bytes_(0, 256, EXPERTS, 2 * INTER, LATENT // 2),
        bytes_(119, 121, EXPERTS, 2 * INTER, LATENT // 32),
        bytes_(0, 256, EXPERTS, LATENT, INTER // 2),
        bytes_(119, 121, EXPERTS, LATENT, INTER // 32),
    )
    device, ranks = torch.device("cuda"), Ranks(1)
    ranks.connect(exchanges(HIDDEN, LATENT, EXPERTS, 1), device, None)
    return Moe(module, weights, Shared(EXPERTS, LATENT, device, ranks))


def _rearranged(weights: Kept) -> Any:
    """As vLLM's module is after loading: words of weights, scales by group."""
    return SimpleNamespace(**{
        "w13_weight": repacked(weights.w13).view(torch.int32).flatten(2),
        "w13_weight_scale": repacked_scales(weights.s13).view(torch.float8_e8m0fnu),
        "w2_weight": repacked(weights.w2).view(torch.int32).flatten(2),
        "w2_weight_scale": repacked_scales(weights.s2).view(torch.float8_e8m0fnu),
    })  # fmt: skip


def _loaded(weights: Kept) -> Any:
    """As vLLM's module is before."""
    names = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
    return SimpleNamespace(**dict(zip(names, weights, strict=True)))


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_experts_read_in_place_are_those_of_the_copy(moe: Moe, batch: int) -> None:
    weights = moe.weights
    assert isinstance(weights, Kept)
    x = _norm(torch.randn(batch, HIDDEN, device="cuda"))
    rows = torch.full((1,), batch, dtype=torch.int32, device="cuda")
    theirs = moe.routed(x, rows).float()
    own = _rearranged(weights)
    moe.weights = located(own, kept(_loaded(weights), sample=True))
    try:
        assert moe.extra_bytes == 0
        assert moe.weights.w13.data_ptr() == own.w13_weight.data_ptr()
        mine = [moe.routed(x, rows) for _ in range(REPLAYS)]
    finally:
        moe.weights = weights
    assert float((mine[0].float() - theirs).norm() / theirs.norm()) < 4e-3
    assert all(torch.equal(one, mine[0]) for one in mine)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("up", [False, True])
def test_every_replay_has_the_bits_of_the_first(
    moe: Moe, batch: int, shared: bool, up: bool
) -> None:
    first = _norm(torch.randn(batch, HIDDEN, device="cuda"))
    rows = torch.full((1,), batch, dtype=torch.int32, device="cuda")

    def chain() -> Tensor:
        x = first
        for _ in range(LAYERS):
            x = _norm(moe(x, rows, shared, up))
        return x

    eager = chain().clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for _ in range(REPLAYS):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, eager)
    moe.shared.front.check()


def test_rows_without_a_request_have_no_experts(moe: Moe) -> None:
    x = _norm(torch.randn(4, HIDDEN, device="cuda"))
    rows = torch.tensor([2], dtype=torch.int32, device="cuda")
    routed = moe.routed(x, rows)
    assert not routed[2:].any() and bool(routed[:2].any(1).all())


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_shared_experts_in_the_routers_launch_are_the_engines(moe: Moe, batch: int) -> None:
    x = _norm(torch.randn(batch, HIDDEN, device="cuda"))
    rows = torch.full((1,), batch, dtype=torch.int32, device="cuda")
    mine, theirs = (moe(x, rows, shared, False).float() for shared in (True, False))
    assert float((mine - theirs).norm() / theirs.norm()) < 5e-3


def test_first_maps_are_read_where_the_engine_has_them(moe: Moe) -> None:
    module = moe.module
    gate, down, first = (
        one.weight
        for one in (module.gate, module.routed_expert_down_proj, module.shared_experts.gate_up_proj)
    )
    assert gate.data_ptr() == moe.into.data_ptr()
    assert down.data_ptr() == moe.into[EXPERTS:].data_ptr()
    assert first.data_ptr() == moe.into[EXPERTS + LATENT :].data_ptr()
    assert gate.is_contiguous() and down.is_contiguous() and first.is_contiguous()


def test_a_mix_site_has_the_same_bits_whether_or_not_others_may_begin_early() -> None:
    norm = SimpleNamespace(weight=_weight(HIDDEN), variance_epsilon=1e-5)
    site = MixSite(norm, _linear(1, HIDDEN), norm, 2, 1, "add", False)
    prefix, delta = _weight(3, HIDDEN), _weight(3, HIDDEN)
    bank = _weight(3, 2, HIDDEN)
    made = [site(prefix.clone(), delta, bank, early=early) for early in (False, True)]
    assert torch.equal(*made)


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_through_mailboxes_the_next_site_takes_what_a_call_gives(moe: Moe, batch: int) -> None:
    norm = SimpleNamespace(weight=_weight(HIDDEN), variance_epsilon=1e-5)
    site = MixSite(norm, _linear(1, HIDDEN), norm, 2, 1, "add", False)
    x = _norm(torch.randn(batch, HIDDEN, device="cuda"))
    rows = torch.full((1,), batch, dtype=torch.int32, device="cuda")
    prefix, bank = _weight(batch, HIDDEN), _weight(batch, 2, HIDDEN)
    boxes = moe.shared.ranks.boxes
    assert boxes is not None

    def sent() -> Tensor:
        moe.send(x, rows)
        return site.collect(prefix.clone(), boxes.columns, bank, early=False, columns=True)

    plain = site(prefix.clone(), moe(x, rows, True, True), bank, early=False).float()
    first = sent().clone()
    assert float((first.float() - plain).norm() / plain.norm()) < 0.01
    for _ in range(REPLAYS):
        assert torch.equal(sent(), first)
    moe.shared.ranks.wait()


@pytest.mark.parametrize(("requests", "idle"), [(1, 0), (2, 0), (2, 1), (8, 0), (8, 3)])
@pytest.mark.parametrize("each", [4, 8])
def test_rows_of_a_verification_are_what_each_is_alone(
    moe: Moe, requests: int, idle: int, each: int
) -> None:
    """A layer in a graph: mix sites and experts of ours around attention in vLLM's place, whose
    rows see those of their request before them. Then one row without its request."""
    torch.manual_seed(1)
    norm = SimpleNamespace(weight=torch.ones(HIDDEN, device="cuda"), variance_epsilon=1e-5)
    before, behind = (MixSite(norm, _linear(1, HIDDEN), norm, 2, 1, "add", False) for _ in "ab")
    batch, real = requests * each, (requests - idle) * each
    first, bank = _norm(torch.randn(batch, HIDDEN, device="cuda")), _weight(batch, 2, HIDDEN)
    rows = torch.full((1,), real, dtype=torch.int32, device="cuda")

    def attention(x: Tensor) -> Tensor:
        seen = x.float().view(requests, each, HIDDEN).cumsum(1)
        return seen.bfloat16().view(batch, HIDDEN)

    def step() -> tuple[Tensor, Tensor]:
        prefix = first.clone()
        seen = attention(before(prefix, torch.zeros_like(first), bank, early=False))
        x = behind(prefix, seen, bank, early=True)
        return seen, moe(x, rows, True, batch <= 8)

    _, eager = (one.clone() for one in step())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen, out = step()
    for _ in range(REPLAYS):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, eager)
    alone = torch.ones(1, dtype=torch.int32, device="cuda")
    for row in {0, each - 1, real - each, real - 1}:
        at = slice(row, row + 1)
        x = behind(first[at].clone(), seen[at], bank[at], early=True)
        single = moe(x, alone, True, True).float()
        assert float((out[at].float() - single).norm() / single.norm()) < 1e-2
    moe.shared.front.check()


@pytest.mark.parametrize(
    ("dtype", "ranks", "served"),
    [("auto", 1, True), ("bfloat16", 1, True), ("fp8", 1, False), ("auto", 2, False)],
)
def test_latents_in_fp8_or_spread_over_ranks_stay_the_engines(
    dtype: str, ranks: int, served: bool
) -> None:
    attention = SimpleNamespace(kv_cache_dtype=dtype, dcp_world_size=ranks)
    assert MlaHalf.serves(attention) is served
