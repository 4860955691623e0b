"""Portable kernels against the reference, packing, sharding.

Protects: the maths a compiler is given (in FP64, where only real differences show) and the
algebra of ranks. The compiled code itself: test_cases, test_executor.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.dims import Dims
from kimi_k3.kernels.attn_res.portable import site
from kimi_k3.kernels.common import Constants
from kimi_k3.kernels.kda import portable as kda_ops
from kimi_k3.kernels.kda import prepared as kda
from kimi_k3.kernels.mla import portable as mla_ops
from kimi_k3.kernels.moe import portable as moe_ops
from kimi_k3.kernels.moe import prepared as moe
from kimi_k3.kernels.oproj.portable import settle
from kimi_k3.kernels.projection import prepared as projection
from kimi_k3.kernels.units import UNITS
from kimi_k3.presets import K3, NANO
from kimi_k3.reference import attn_res as ref_attn_res
from kimi_k3.reference import kda as ref_kda
from kimi_k3.reference import mla as ref_mla
from kimi_k3.reference import moe as ref_moe
from kimi_k3.reference.weights import Scope

DIMS = common.DIMS
NAN = float("nan")


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# ---- operations -------------------------------------------------------------------------------


@pytest.mark.parametrize("sources", [0, 1, 3])
def test_site_equals_the_reference_and_ignores_blocks_not_stored(sources: int) -> None:
    prefix, bank = _random(4, DIMS.hidden), _random(4, 3, DIMS.hidden)
    gain, query, out = _random(DIMS.hidden), _random(1, DIMS.hidden), _random(DIMS.hidden)
    stored = [bank[:, n].clone() for n in range(sources)]
    bank[:, sources:] = NAN
    wanted = ref_attn_res.site(prefix, None, stored, False, gain, query, out, DIMS.eps).output
    _close(site(prefix, bank, torch.tensor(sources), gain * query[0], out, DIMS.eps), wanted)


def test_settle_restarts_the_prefix_without_reading_it() -> None:
    delta, prefix = _random(2, 8), torch.full((2, 8), NAN, dtype=torch.float64)
    assert torch.equal(settle(prefix, delta, torch.tensor(True)), delta)
    assert torch.equal(settle(delta, delta, torch.tensor(False)), delta + delta)


def test_recurrence_equals_the_reference() -> None:
    q, k, v, rate = (_random(3, 4, 32) for _ in range(4))
    beta, state = torch.rand(3, 4, dtype=torch.float64), _random(3, 4, 32, 32)
    log_decay = -rate.abs()
    found = kda_ops.recur(state, q, k, v, log_decay.exp(), beta)
    for one, other in zip(found, ref_kda.delta_step(q, k, v, log_decay, beta, state), strict=True):
        _close(one, other)


def test_convolution_equals_the_reference() -> None:
    x, history, taps = _random(3, 24), _random(3, 3, 24), _random(4, 24)
    y, shifted = kda_ops.convolve(x, history, taps)
    wanted, conv = ref_kda.conv_step(x, history, taps.t())
    _close(y, torch.nn.functional.silu(wanted))
    _close(shifted, conv)


def test_decay_equals_the_reference_and_stays_within_its_bound() -> None:
    raw, a_log, bias = _random(3, 4, 32) * 50, _random(4), _random(4, 32)
    found = kda_ops.decay(raw, a_log.exp()[:, None], bias, DIMS.gate_lower_bound)
    wanted = ref_kda.log_decay(raw, a_log, bias.flatten(), DIMS.gate_lower_bound).exp()
    _close(found, wanted)
    assert found.min() >= torch.tensor(DIMS.gate_lower_bound, dtype=torch.float64).exp()


def test_attention_gives_no_weight_to_repeated_rows() -> None:
    query, rows = _random(1, 2, 4, 20), _random(2, 6, 20)
    rows[1, 3:] = rows[1, 2]  # what the executor gathers beyond a request's length
    visible = torch.arange(6) < torch.tensor([[[6]], [[3]]])
    found = mla_ops.attend(query, rows, visible, 16, 0.3)
    short = mla_ops.attend(query[:, 1:], rows[1:, :3], visible[1:, :, :3], 16, 0.3)
    _close(found[:, 1:], short)


def test_attention_of_several_tokens_is_that_of_each_alone() -> None:
    query, rows = _random(3, 2, 4, 20), _random(2, 6, 20)
    visible = torch.arange(6) < torch.tensor([[[3], [4], [5]], [[1], [2], [3]]])
    found = mla_ops.attend(query, rows, visible, 16, 0.3)
    for token in range(3):
        one = mla_ops.attend(query[token : token + 1], rows, visible[:, token : token + 1], 16, 0.3)
        _close(found[token : token + 1], one)


# ---- several tokens ---------------------------------------------------------------------------


def test_token_by_token_pieces_equal_the_reference_over_a_sequence() -> None:
    # The truth here is the chunked form, which has no recurrence at all.
    own = common.doubled(common.layer_weights(0, common.KDA, ("self_attn", "self_attention_res",
                                                              "input_layernorm")))  # fmt: skip
    packed, c = kda.pack(common.getter(own), common.constants()), common.constants()
    conv, recurrent = (
        _random(9, *shape) for shape in (DIMS.conv_state_shape(), DIMS.recurrent_state_shape())
    )
    prefix, bank = _random(5, DIMS.hidden), _random(5, 3, DIMS.hidden)
    before, row = (conv[7].clone(), recurrent[7].clone()), torch.tensor([True])
    sites, source = torch.tensor([2, 2, 0]), torch.tensor([7])
    projected = UNITS["kda_project"].function(c, prefix, bank, sites, *packed.row)
    heads = []
    for token in range(5):
        target = torch.tensor([token + 1])
        part = projected[token : token + 1]  # type: ignore[index]
        heads.append(
            UNITS["kda_token"].function(
                c, part, conv, recurrent, source, target, row, *packed.token
            )
        )
        source = target
    x = site(prefix, bank, sites[0], packed.row.score, packed.row.gain, DIMS.eps)
    for token in range(1, 6):
        wanted = ref_kda.forward(Scope(own, "self_attn."), DIMS, x[:token], *before)
        _close(conv[token], wanted.conv)
        _close(recurrent[token], wanted.recurrent)
    _close(torch.cat(heads) @ packed.out_proj.t(), wanted.y)  # type: ignore[arg-type]


def test_a_token_without_a_slot_of_its_own_leaves_the_null_slot_as_it_is() -> None:
    own = common.doubled(common.layer_weights(0, common.KDA, ("self_attn", "self_attention_res",
                                                              "input_layernorm")))  # fmt: skip
    packed, c = kda.pack(common.getter(own), common.constants()), common.constants()
    conv = _random(4, *DIMS.conv_state_shape())
    recurrent = _random(4, *DIMS.recurrent_state_shape())
    before = conv.clone(), recurrent.clone()
    projected = _random(2, sum(kda.widths(c)))
    source, target = torch.tensor([0, 2]), torch.tensor([0, 3])
    UNITS["kda_token"].function(
        c, projected, conv, recurrent, source, target, target > 0, *packed.token
    )
    for found, old in zip((conv, recurrent), before, strict=True):
        assert torch.equal(found[:3], old[:3]) and not torch.equal(found[3], old[3])


# ---- near-collinear keys ------------------------------------------------------------------------


def test_recurrence_stays_exact_where_keys_hardly_differ() -> None:
    # Forms that invert the overlap of keys lose everything here.
    direction = torch.nn.functional.normalize(_random(1, 4, 32), dim=-1)
    state = _random(2, 4, 32, 32).float()
    exact = state.double()
    for _ in range(64):
        k = torch.nn.functional.normalize(direction + 1e-6 * _random(2, 4, 32), dim=-1)
        q, v, rate = (_random(2, 4, 32) for _ in range(3))
        beta, decay = torch.rand(2, 4, dtype=torch.float64), (-1e-3 * rate.abs()).exp()
        o, state = kda_ops.recur(state, *(one.float() for one in (q, k, v, decay, beta)))
        wanted, exact = kda_ops.recur(exact, q, k, v, decay, beta)
    assert torch.isfinite(state).all()
    torch.testing.assert_close(o.double(), wanted, rtol=1e-4, atol=1e-4)


def test_absorbed_attention_equals_the_reference() -> None:
    own = Scope(common.doubled(common.layer_weights(0, common.MLA, ("self_attn",))), "self_attn.")
    keys, values = ref_mla.up_projections(own, DIMS)
    q, o = _random(3, DIMS.mla_heads, DIMS.qk_head_dim), _random(3, DIMS.mla_heads, DIMS.kv_lora)
    _close(mla_ops.absorb(q, keys.transpose(1, 2)), ref_mla.absorb(own, DIMS, q))
    found = mla_ops.values(o, values, torch.zeros(3, DIMS.mla_heads * DIMS.v_head_dim))
    _close(found, 0.5 * torch.einsum("bhl,hvl->bhv", o, values).flatten(1))


# ---- routing ----------------------------------------------------------------------------------


def test_route_equals_the_reference() -> None:
    logits, bias = _random(50, 16) * 3, _random(16)
    ids, weights = moe_ops.route(logits, bias, 4, 2.5)
    wanted = ref_moe.route(logits, bias, 4, 2.5)
    assert torch.equal(ids, wanted.ids)
    _close(weights, wanted.weights)


def test_route_gives_ties_to_the_lower_expert() -> None:
    logits = torch.zeros(1, 16)
    logits[0, 9] = 1.0
    ids, weights = moe_ops.route(logits, torch.zeros(16), 4, 1.0)
    assert ids.tolist() == [[9, 0, 1, 2]]
    assert weights.sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
def test_route_of_degenerate_logits_stays_within_the_experts(value: float) -> None:
    # An index out of range would end the process inside compiled code.
    logits = torch.randn(3, 16)
    logits[1] = value
    ids, weights = moe_ops.route(logits, torch.zeros(16), 4, 1.0)
    assert ids.min() >= 0 and ids.max() < 16
    for row in (0, 2):  # neighbours of such a row are as they are without it
        alone = moe_ops.route(logits[row : row + 1], torch.zeros(16), 4, 1.0)
        assert torch.equal(ids[row], alone[0][0]) and torch.equal(weights[row], alone[1][0])
    if not math.isnan(value):
        assert len(set(ids[1].tolist())) == 4


def test_route_bias_selects_but_does_not_weigh() -> None:
    bias = torch.zeros(16)
    bias[5] = 10.0
    logits = torch.zeros(1, 16)
    logits[0, 5] = -2.0
    ids, weights = moe_ops.route(logits, bias, 2, 1.0)
    assert ids[0, 0] == 5
    assert weights[0, 0] < weights[0, 1]


# ---- packing and sharding ---------------------------------------------------------------------


def test_packing_refuses_weights_cut_for_another_number_of_ranks() -> None:
    projection.pack((6, 3), torch.zeros(4, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"\[6, 3\], want \[3, 3\]"):
        projection.pack((3, 3), torch.zeros(4, 3), torch.zeros(2, 3))


def test_kda_packs_a_log_longer_than_its_heads() -> None:
    own = common.layer_weights(0, common.KDA, ("self_attn", "self_attention_res", "input_layer"))
    assert len(own["self_attn.A_log"]) > DIMS.kda_heads  # as released
    packed = kda.pack(common.getter(own), common.constants())
    assert torch.equal(
        packed.token.decay_speed[:, 0], own["self_attn.A_log"][: DIMS.kda_heads].exp()
    )


def _shard(weights: dict[str, Tensor], rank: int, tp: int) -> dict[str, Tensor]:
    """MoE weights of one rank as the engine's loaders cut them."""
    cut = {}
    for name, tensor in weights.items():
        rows = name.endswith(("w1.weight", "w3.weight", "experts.gate_proj.weight"))
        rows |= name.endswith("experts.up_proj.weight")
        columns = name.endswith(("w2.weight", "experts.down_proj.weight"))
        axis = 0 if rows else 1 if columns else None
        cut[name] = tensor if axis is None else tensor.chunk(tp, axis)[rank].contiguous()
    return cut


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_moe_over_ranks_equals_the_reference(tp: int) -> None:
    parts = ("block_sparse_moe", "mlp_res", "post_attention_layernorm")
    weights = common.doubled(common.layer_weights(0, common.KDA, parts))
    prefix, delta, bank = (_random(3, *n, DIMS.hidden) for n in ((), (), (3,)))
    sites, c = torch.tensor([2, 2, 0]), Constants.of(DIMS, tp)
    packed = [moe.pack(common.getter(_shard(weights, rank, tp)), c, rank) for rank in range(tp)]
    prefixes = [prefix.clone() for _ in range(tp)]

    def run(unit: str, rank: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        made = UNITS[unit].function(c, *inputs)
        return made if isinstance(made, tuple) else (made,)  # type: ignore[return-value]

    fronts = [
        run("moe_front", r, prefixes[r], bank, sites, delta, *packed[r][0]) for r in range(tp)
    ]
    gathered = torch.cat([part for part, _ in fronts], dim=1)
    shares = [run("experts", r, gathered, fronts[r][1], *packed[r][1])[0] for r in range(tp)]
    for rank in range(tp):
        run("moe_tail", rank, prefixes[rank], torch.stack(shares).sum(0), *packed[rank][2])
    inputs = weights | {"bank": bank, "sources": torch.tensor(2)}
    x = common.site(inputs, prefix + delta, "mlp_res", "post_attention_layernorm")
    wanted = prefix + delta + ref_moe.forward(Scope(weights, "block_sparse_moe."), DIMS, x)
    for found in prefixes:
        _close(found, wanted)


def test_constants_are_rank_local_and_cover_the_released_model() -> None:
    c = Constants.of(Dims.from_config(K3), 8)
    assert (c.kda_heads, c.mla_heads, c.shared_inter) == (12, 12, 768)
    assert (c.experts, c.latent, c.hidden) == (896, 3584, 7168)
    assert sum(kda.widths(c)) == 4 * 1536 + 128 + 12
    assert moe.widths(c) == [112, 448, 768, 768]
    with pytest.raises(ValueError, match="does not divide"):
        Constants.of(Dims.from_config(NANO), 3)
