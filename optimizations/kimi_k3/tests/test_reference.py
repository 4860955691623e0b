"""Protects: the reference is the K3 maths, and its sequence and step forms are the same model.

Where it can be, the expected value comes from a plain loop written here or from another library,
never from the code under test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kimi_k3.dims import Dims
from kimi_k3.presets import NANO
from kimi_k3.reference import attn_res, basic, decoder, kda, mla, moe
from kimi_k3.reference.weights import Scope, layer_prefix

Model = tuple[Dims, dict[str, Tensor]]
Build = Callable[..., Model]

# Depth, 1-based MLA layers, AttnRes block, other keys.
VARIANTS: dict[str, tuple[int, tuple[int, ...], int, dict[str, Any]]] = {
    "nano shape": (6, (4, 6), 4, {}),
    "mla opens a block": (5, (4, 5), 4, {}),
    "every layer a block": (3, (2,), 1, {}),
    "one block": (3, (3,), 12, {}),
    "no mla": (2, (), 8, {}),
    "only mla": (3, (1, 2, 3), 2, {}),
    "no dense layer": (3, (3,), 2, {"first_k_dense_replace": 0}),
    "no moe layer": (3, (3,), 2, {"first_k_dense_replace": 3}),
    "scaled experts": (3, (3,), 2, {"routed_scaling_factor": 2.5, "num_experts": 32}),
}


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def variant(request: pytest.FixtureRequest, build: Build) -> Model:
    layers, mla_layers, block, other = VARIANTS[request.param]
    return build(layers, mla_layers, block, **other)


@pytest.fixture(scope="module")
def small(build: Build) -> Model:
    return build(6, (4, 6), 4)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def token_ids(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 512, (count,), generator=torch.Generator().manual_seed(seed))


def attention_weights(model: Model, kind: str) -> Scope:
    dims, weights = model
    return Scope(weights, layer_prefix(dims.layer_kinds.index(kind)) + "self_attn.")


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


# ---- the whole decoder --------------------------------------------------------------------------


def test_steps_give_the_logits_of_the_whole_sequence(variant: Model) -> None:
    dims, weights = variant
    ids = token_ids(kda.CHUNK + 6)
    state = decoder.State.empty(dims, torch.float64)
    steps = [decoder.step(weights, dims, state, token) for token in ids.tolist()]
    close(torch.stack(steps), decoder.forward(weights, dims, ids))


def test_steps_give_the_logits_of_the_whole_nano(nano: Model) -> None:
    dims, weights32 = nano
    weights = {name: tensor.double() for name, tensor in weights32.items()}
    ids = token_ids(12)
    state = decoder.State.empty(dims, torch.float64)
    steps = [decoder.step(weights, dims, state, token) for token in ids.tolist()]
    whole = decoder.forward(weights, dims, ids)
    close(torch.stack(steps), whole)
    assert (decoder.forward(weights32, dims, ids) - whole).abs().max() < 5e-4, "FP32 noise"


@pytest.mark.parametrize("pieces", [(1, 1, 78), (63, 1, 16), (64, 16), (65, 15), (79, 1)])
def test_chunked_prefill_gives_the_logits_of_the_whole_sequence(
    small: Model, pieces: tuple[int, ...]
) -> None:
    dims, weights = small
    ids = token_ids(80)
    state = decoder.State.empty(dims, torch.float64)
    parts = [decoder.extend(weights, dims, state, part) for part in ids.split(list(pieces))]
    close(torch.cat(parts), decoder.forward(weights, dims, ids))


def test_prefill_and_decode_leave_the_same_state(small: Model) -> None:
    dims, weights = small
    ids = token_ids(9)
    prefilled, stepped = (decoder.State.empty(dims, torch.float64) for _ in range(2))
    decoder.extend(weights, dims, prefilled, ids)
    for token in ids.tolist():
        decoder.step(weights, dims, stepped, token)
    for one, other in zip(prefilled.layers, stepped.layers, strict=True):
        for name, tensor in vars(one).items():
            close(tensor, vars(other)[name])


def test_batched_decode_is_each_request_alone(small: Model) -> None:
    """Unequal lengths, one of them zero, share no state."""
    dims, weights = small
    prompts = [token_ids(count, seed=count) for count in (3, 17, 1, 8)]
    states = [decoder.State.empty(dims, torch.float64) for _ in range(5)]
    for state, prompt in zip(states, prompts, strict=False):
        decoder.extend(weights, dims, state, prompt)
    for round_ in range(3):
        ids = token_ids(5, seed=100 + round_)
        hidden = decoder.decode(weights, dims, states, decoder.embed(weights, ids))
        prompts = [torch.cat([p, ids[n : n + 1]]) for n, p in enumerate([*prompts, ids[:0]][:5])]
    for row, prompt in enumerate(prompts):
        wanted = decoder.forward(weights, dims, prompt)[-1]
        close(decoder.logits(weights, hidden)[row], wanted)


def test_later_tokens_change_no_earlier_logits(small: Model) -> None:
    dims, weights = small
    ids = token_ids(20)
    other = torch.cat([ids[:11], token_ids(9, seed=5)])
    first, second = (decoder.forward(weights, dims, one) for one in (ids, other))
    close(first[:11], second[:11], 1e-12)
    assert (first[11:] - second[11:]).abs().max() > 0.1


GREEDY = "Kimi K3 decodes on"
GREEDY_IDS = (
    *(371, 206, 479, 480, 111, 332, 169, 395, 216, 32, 496, 93),
    *(433, 261, 417, 124, 314, 205, 310, 494, 212, 87, 392, 295),
)


def test_greedy_continuation_is_the_known_one(nano: Model) -> None:
    """Any change of the maths shows here. A second, independent implementation gave the same."""
    dims, weights = nano
    state = decoder.State.empty(dims)
    last = decoder.extend(weights, dims, state, list(GREEDY.encode()))[-1]
    found = [int(last.argmax())]
    while len(found) < len(GREEDY_IDS):
        found.append(int(decoder.step(weights, dims, state, found[-1]).argmax()))
    assert tuple(found) == GREEDY_IDS


# ---- attention residuals ------------------------------------------------------------------------


def test_mix_of_an_empty_bank_is_the_prefix_itself() -> None:
    prefix, gain, query = normal(3, 8), normal(8, seed=1), normal(8, seed=2)
    assert torch.equal(attn_res.mix(prefix, [], gain, query, 1e-5), prefix)


def test_mix_matches_a_scalar_loop() -> None:
    prefix, gain, query = normal(8), normal(8, seed=1), normal(1, 8, seed=2)
    bank = [normal(8, seed=3) * 5, normal(8, seed=4) * 0.1]
    sources = [one.tolist() for one in (*bank, prefix)]
    score = []
    for source in sources:
        dot = sum(
            s * g * u for s, g, u in zip(source, gain.tolist(), query[0].tolist(), strict=True)
        )
        score.append(dot / math.sqrt(sum(s * s for s in source) / 8 + 1e-5))
    weight = [math.exp(a) for a in score]
    wanted = [
        sum(w * source[d] for w, source in zip(weight, sources, strict=True)) / sum(weight)
        for d in range(8)
    ]
    close(attn_res.mix(prefix, bank, gain, query, 1e-5), torch.tensor(wanted, dtype=torch.float64))


def test_mix_is_convex_in_raw_sources() -> None:
    bank, prefix = [normal(4, 8, seed=n) * (n + 1) for n in range(3)], normal(4, 8, seed=9)
    gain, query = normal(8, seed=1), normal(8, seed=2)
    mixed = attn_res.mix(prefix, bank, gain, query, 1e-5)
    sources = torch.stack([*bank, prefix])
    assert (mixed >= sources.amin(0) - 1e-12).all() and (mixed <= sources.amax(0) + 1e-12).all()
    close(attn_res.mix(prefix, [prefix, prefix], gain, query, 1e-5), prefix)
    close(attn_res.mix(prefix, bank, gain, query * 0, 1e-5), sources.mean(0))


def test_scores_ignore_the_length_of_a_source() -> None:
    sources, gain, query = normal(3, 2, 8), normal(8, seed=1), normal(8, seed=2)
    wanted = attn_res.scores(sources, gain, query, 0.0)
    close(attn_res.scores(sources * 1000.0, gain, query, 0.0), wanted)


def test_written_block_is_the_prefix_after_delta_and_no_source_yet() -> None:
    prefix, delta, out_gain = normal(2, 8), normal(2, 8, seed=1), torch.ones(8).double()
    gain, query = normal(8, seed=2), normal(8, seed=3)
    bank = (normal(2, 8, seed=4),)
    at = attn_res.site(prefix, delta, bank, True, gain, query, out_gain, 1e-5)
    assert torch.equal(at.prefix, prefix + delta)
    assert len(at.bank) == 2 and torch.equal(at.bank[1], prefix + delta)
    mixed = attn_res.mix(prefix + delta, bank, gain, query, 1e-5)
    close(at.output, functional.rms_norm(mixed, (8,), eps=1e-5))
    assert len(attn_res.site(prefix, None, bank, False, gain, query, out_gain, 1e-5).bank) == 1


def test_bank_holds_the_embedding_then_the_sum_of_each_block(
    variant: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookkeeping of the whole decoder, rebuilt from module outputs alone."""
    dims, weights = variant
    sites: list[tuple[int, attn_res.Site]] = []
    outputs: list[Tensor] = []  # attention and MLP outputs, alternating
    honest = attn_res.site

    def spy(prefix: Tensor, delta: Any, bank: Any, *rest: Any) -> attn_res.Site:
        if len(sites) % 2 == 0 and sites:
            outputs.append(delta)
        sites.append((len(bank), honest(prefix, delta, bank, *rest)))
        return sites[-1][1]

    def attention(layer: int, own: Any, x: Tensor) -> Tensor:
        outputs.append(torch.tanh(x + layer))
        return outputs[-1]

    monkeypatch.setattr(attn_res, "site", spy)
    hidden = normal(4, dims.hidden)
    decoder.layers(weights, dims, hidden, attention)

    assert len(sites) == 2 * dims.layers + 1 and len(outputs) == 2 * dims.layers
    for layer in range(dims.layers):
        assert sites[2 * layer][0] == dims.sources(layer)
        assert sites[2 * layer + 1][0] == dims.mlp_sources(layer)
    sources, last = sites[-1]
    assert sources == dims.blocks == len(last.bank)
    assert torch.equal(last.bank[0], hidden), "block 0 is the embedding"
    per_block = 2 * dims.block
    for block in range(1, dims.blocks):
        close(last.bank[block], sum(outputs[per_block * (block - 1) : per_block * block]))  # type: ignore[arg-type]
    close(last.prefix, sum(outputs[per_block * (dims.blocks - 1) :]))  # type: ignore[arg-type]


# ---- Kimi delta attention -----------------------------------------------------------------------


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def naive_kda(own: Scope, dims: Dims, x: Any) -> Any:
    """One KDA layer over a sequence: numpy, one token, one head and one tap at a time."""
    get = lambda name: own[name].numpy()  # noqa: E731
    heads, width = dims.kda_heads, dims.kda_head_dim
    history = {n: [np.zeros(heads * width)] * (dims.conv - 1) for n in "qkv"}
    memory = np.zeros((heads, width, width))
    out = []
    for token in x:
        mixed = {}
        for n in "qkv":
            history[n] = [*history[n], get(f"{n}_proj.weight") @ token][-dims.conv :]
            taps = get(f"{n}_conv1d.weight")
            z = sum(taps[:, 0, j] * history[n][j] for j in range(dims.conv))
            mixed[n] = (z * _sigmoid(z)).reshape(heads, width)
        decay_in = get("f_b_proj.weight") @ (get("f_a_proj.weight") @ token) + get("dt_bias")
        gate = (get("g_proj.weight") @ token).reshape(heads, width)
        strength = _sigmoid(get("b_proj.weight") @ token)
        rows = []
        for h in range(heads):
            q, k, v = (mixed[n][h] for n in "qkv")
            q = q / np.sqrt((q * q).sum() + 1e-6) / np.sqrt(width)
            k = k / np.sqrt((k * k).sum() + 1e-6)
            rate = np.exp(get("A_log")[h])
            decay = np.exp(-5.0 * _sigmoid(rate * decay_in[h * width : (h + 1) * width]))
            memory[h] = memory[h] * decay[None, :]
            memory[h] += strength[h] * np.outer(v - memory[h] @ k, k)
            o = memory[h] @ q
            o = o / np.sqrt((o * o).mean() + 1e-5) * get("o_norm.weight")
            rows.append(o * _sigmoid(gate[h]))
        out.append(get("o_proj.weight") @ np.concatenate(rows))
    return np.stack(out), memory


def kda_start(dims: Dims) -> tuple[Tensor, Tensor]:
    return (
        torch.zeros(dims.conv_state_shape(), dtype=torch.float64),
        torch.zeros(dims.recurrent_state_shape(), dtype=torch.float64),
    )


def test_kda_matches_a_naive_loop(small: Model) -> None:
    dims, own = small[0], attention_weights(small, "kda")
    x = normal(kda.CHUNK + 10, dims.hidden)
    wanted, memory = naive_kda(own, dims, x.numpy())
    conv, recurrent = kda_start(dims)
    found = kda.forward(own, dims, x, conv, recurrent)
    close(found.y, torch.from_numpy(wanted))
    close(found.recurrent, torch.from_numpy(memory))
    conv, recurrent = conv[None], recurrent[None]
    for token, row in zip(x, wanted, strict=True):
        y, conv, recurrent = kda.step(own, dims, token[None], conv, recurrent)
        close(y[0], torch.from_numpy(row))
    close(conv[0], found.conv)


def test_kda_reads_only_the_used_part_of_a_log(small: Model) -> None:
    """Stored A_log is longer than the heads; its tail must be inert."""
    dims, weights = small
    name = layer_prefix(0) + "self_attn.A_log"
    assert len(weights[name]) > dims.kda_heads
    poisoned = dict(weights)
    poisoned[name] = weights[name].clone()
    poisoned[name][dims.kda_heads :] = math.nan
    x = normal(5, dims.hidden)
    one, other = (
        kda.forward(attention_weights((dims, w), "kda"), dims, x, *kda_start(dims)).y
        for w in (weights, poisoned)
    )
    assert torch.equal(one, other)


def test_strong_decay_over_a_chunk_stays_finite() -> None:
    """exp(-5 * 64) does not exist in FP32; differences of running sums must still be right."""
    tokens, heads, width = kda.CHUNK, 2, 8
    q, k, v = (normal(tokens, heads, width, seed=n).float() for n in range(3))
    k = functional.normalize(k, dim=-1)
    decay = torch.full((tokens, heads, width), -5.0)
    beta = torch.full((tokens, heads), 0.9)
    start = torch.ones(heads, width, width)
    o, state = kda.delta_chunk(q, k, v, decay, beta, start)
    assert o.isfinite().all() and state.isfinite().all()
    _assert_chunk_is_recurrence(q, k, v, decay, beta, start, 1e-5)


def test_near_collinear_keys_stay_exact() -> None:
    """The hard case of a chunked delta rule: the triangular system is nearly all ones."""
    tokens, heads, width = kda.CHUNK, 2, 16
    q, noise, v = (normal(tokens, heads, width, seed=n) for n in range(3))
    k = functional.normalize(normal(1, heads, width, seed=9) + 1e-6 * noise, dim=-1)
    decay = torch.full((tokens, heads, width), -1e-4, dtype=torch.float64)
    beta = torch.full((tokens, heads), 0.999, dtype=torch.float64)
    start = normal(heads, width, width, seed=7)
    _assert_chunk_is_recurrence(q, k, v, decay, beta, start, 1e-10)


def _assert_chunk_is_recurrence(*parts: Any) -> None:
    *inputs, start, tolerance = parts
    o, state = kda.delta_chunk(*inputs, start)
    wanted = start[None]
    for token in range(len(o)):
        row, wanted = kda.delta_step(*(one[token : token + 1] for one in inputs), wanted)
        close(o[token], row[0], tolerance)
    close(state, wanted[0], tolerance)


def test_bounded_decay_is_bounded_and_another_activation_than_unbounded() -> None:
    raw = torch.linspace(-60.0, 60.0, 64, dtype=torch.float64).view(1, 2, 32)
    a_log, bias = torch.tensor([0.0, 1.0]).double(), torch.zeros(64).double()
    bounded = kda.log_decay(raw, a_log, bias, -5.0)
    unbounded = kda.log_decay(raw, a_log, bias, None)
    assert ((bounded >= -5.0) & (bounded <= 0.0)).all()
    assert unbounded.min() < -50.0
    rate = a_log.exp().view(2, 1)
    close(bounded, -5.0 / (1.0 + torch.exp(-rate * raw)))
    close(unbounded, -rate * torch.log1p(raw.exp()), 1e-8)  # softplus is linear above 20
    clamped = unbounded.clamp(min=-5.0)
    assert (bounded - clamped).abs().max() > 1.0, "the bound is not a clamp"


# ---- multi-head latent attention ----------------------------------------------------------------


@pytest.mark.parametrize("past_tokens", [0, 1, 13])
def test_mla_matches_scaled_dot_product_attention(small: Model, past_tokens: int) -> None:
    dims, own = small[0], attention_weights(small, "mla")
    x = normal(past_tokens + 9, dims.hidden)

    def norm(value: Tensor, name: str) -> Tensor:
        return functional.rms_norm(value, value.shape[-1:], own[name], dims.eps)

    low = norm(x @ own["q_a_proj.weight"].t(), "q_a_layernorm.weight")
    q = (low @ own["q_b_proj.weight"].t()).unflatten(-1, (4, 48)).transpose(0, 1)
    joint = x @ own["kv_a_proj_with_mqa.weight"].t()
    latent = norm(joint[:, :64], "kv_a_layernorm.weight")
    kv = (latent @ own["kv_b_proj.weight"].t()).unflatten(-1, (4, 64)).transpose(0, 1)
    k = torch.cat([kv[..., :32], joint[None, :, 64:].expand(4, -1, -1)], -1)
    o = functional.scaled_dot_product_attention(q, k, kv[..., 32:], is_causal=True)
    gate = torch.sigmoid(x @ own["g_proj.weight"].t())
    wanted = (o.transpose(0, 1).flatten(1) * gate) @ own["o_proj.weight"].t()

    past = mla.cache_rows(own, dims, x[:past_tokens])
    found = mla.forward(own, dims, x[past_tokens:], past)
    close(found.y, wanted[past_tokens:])
    close(found.rows, torch.cat([latent, joint[:, 64:]], -1)[past_tokens:])


def test_absorbed_step_ignores_whatever_lies_beyond_a_length(small: Model) -> None:
    """Pages beyond a request's length hold other requests' or freed data, NaN included."""
    dims, own = small[0], attention_weights(small, "mla")
    lengths = torch.tensor([0, 4, 7])
    x, cache = normal(3, dims.hidden), normal(3, 9, dims.mla_row, seed=1)
    poisoned = cache.clone()
    for row, length in enumerate(lengths.tolist()):
        poisoned[row, length:] = math.nan
    clean, dirty = (mla.step(own, dims, x, one, lengths) for one in (cache, poisoned))
    assert torch.equal(clean.y, dirty.y)
    for row, length in enumerate(lengths.tolist()):
        alone = mla.forward(own, dims, x[row : row + 1], cache[row, :length])
        close(clean.y[row], alone.y[0])
        close(clean.rows[row], alone.rows[0])


def test_step_leaves_the_given_cache_alone(small: Model) -> None:
    dims, own = small[0], attention_weights(small, "mla")
    cache = normal(2, 5, dims.mla_row)
    before = cache.clone()
    mla.step(own, dims, normal(2, dims.hidden), cache, torch.tensor([3, 5]))
    assert torch.equal(cache, before)


# ---- mixture of experts -------------------------------------------------------------------------


def test_equal_keys_go_to_the_lower_expert() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0], [0.0] * 6])
    routing = moe.route(logits, torch.zeros(6), 4, 1.0)
    assert routing.ids.tolist() == [[1, 3, 2, 4], [0, 1, 2, 3]]


def test_ties_at_scale_go_to_the_lower_expert() -> None:
    """896 experts, 16 chosen: where an unstable top-k starts to shuffle equals."""
    logits = torch.zeros(64, 896)
    logits[:, 700] = 1.0
    ids = moe.route(logits, torch.zeros(896), 16, 1.0).ids
    assert ids.tolist() == [[700, *range(15)]] * 64


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_degenerate_logits_still_give_distinct_experts_in_range(value: float) -> None:
    logits = torch.full((2, 16), value)
    ids = moe.route(logits, torch.zeros(16), 4, 1.0).ids
    assert all(len({*row}) == 4 and set(row) <= set(range(16)) for row in ids.tolist())


def test_bias_selects_but_does_not_weight() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).double()
    bias = torch.tensor([0.0, 0.0, 0.0, 10.0]).double()
    plain = moe.route(logits, torch.zeros(4).double(), 2, 1.0)
    biased = moe.route(logits, bias, 2, 1.0)
    assert plain.ids.tolist() == [[0, 1]]
    assert biased.ids.tolist() == [[3, 0]]
    score = [0.5, 1 / (1 + math.exp(-3.0))]
    wanted = [[one / sum(score) for one in score]]
    close(biased.weights, torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.parametrize("scaling", [1.0, 2.5])
def test_weights_sum_to_the_scaling_factor(scaling: float) -> None:
    weights = moe.route(normal(50, 16), normal(16, seed=1), 4, scaling).weights
    close(weights.sum(-1), torch.full((50,), scaling, dtype=torch.float64))
    underflown = moe.route(torch.full((1, 16), -800.0), torch.zeros(16), 4, scaling).weights
    assert torch.equal(underflown, torch.zeros(1, 4))


def test_moe_matches_every_expert_on_every_token(small: Model) -> None:
    dims, weights = small
    own = Scope(weights, layer_prefix(2) + "block_sparse_moe.")
    x = normal(23, dims.hidden)

    def act(g: Tensor, u: Tensor) -> Tensor:
        return 4.0 * torch.tanh(g / 4.0) / (1.0 + torch.exp(-g)) * 25.0 * torch.tanh(u / 25.0)

    score = 1.0 / (1.0 + torch.exp(-(x @ own["gate.weight"].t())))
    key = (score + own["gate.e_score_correction_bias"]).numpy()
    z = x @ own["routed_expert_down_proj.weight"].t()
    total = torch.zeros(23, dims.latent, dtype=torch.float64)
    for token in range(23):
        chosen = np.argsort(-key[token], kind="stable")[: dims.top_k]
        share = score[token, chosen.tolist()].sum()
        for e in chosen.tolist():
            w1, w2, w3 = (own[f"experts.{e}.w{n}.weight"] for n in (1, 2, 3))
            y = w2 @ act(w1 @ z[token], w3 @ z[token])
            total[token] += score[token, e] / share * y
    normed = functional.rms_norm(total, (dims.latent,), own["routed_expert_norm.weight"], dims.eps)
    gate, up, down = (own[f"shared_experts.{n}_proj.weight"].t() for n in ("gate", "up", "down"))
    wanted = normed @ own["routed_expert_up_proj.weight"].t() + act(x @ gate, x @ up) @ down
    close(moe.forward(own, dims, x), wanted)


# ---- SiTU ---------------------------------------------------------------------------------------


def test_situ_is_bounded_by_the_product_of_its_betas() -> None:
    extreme = torch.tensor([-1e30, -1e3, -30.0, 0.0, 30.0, 1e3, 1e30]).double()
    gate, up = torch.meshgrid(extreme, extreme, indexing="ij")
    value = basic.situ(gate, up, 4.0, 25.0)
    assert value.isfinite().all() and value.abs().max() <= 100.0
    moderate = normal(10000) * 20
    assert basic.situ(moderate, normal(10000, seed=1) * 20, 4.0, 25.0).abs().max() < 100.0


def test_situ_near_zero_is_silu_times_up() -> None:
    gate, up = normal(100) * 1e-3, normal(100, seed=1) * 1e-3
    close(basic.situ(gate, up, 4.0, 25.0), functional.silu(gate) * up, 1e-12)


def test_situ_known_value() -> None:
    wanted = 4 * math.tanh(0.5) / (1 + math.exp(-2.0)) * 25 * math.tanh(-3 / 25)
    found = basic.situ(torch.tensor(2.0).double(), torch.tensor(-3.0).double(), 4.0, 25.0)
    assert float(found) == pytest.approx(wanted, rel=1e-14)


def test_dims_of_the_config_reach_the_maths(build: Build) -> None:
    """Each number of the config that is no shape changes the logits."""
    base = decoder.forward(*reversed(build(3, (3,), 2)), token_ids(6))
    linear = NANO["linear_attn_config"] | {"full_attn_layers": [3], "kda_layers": [1, 2]}
    changes: tuple[dict[str, Any], ...] = (
        {"rms_norm_eps": 1e-2},
        {"routed_scaling_factor": 1.5},
        {"activation_situ_beta": 1.0},
        {"activation_situ_linear_beta": 1.0},
        {"num_experts_per_token": 3},
        {"linear_attn_config": linear | {"gate_lower_bound": -1.0}},
    )
    for change in changes:
        changed = decoder.forward(*reversed(build(3, (3,), 2, **change)), token_ids(6))
        assert (changed - base).abs().max() > 1e-4, change
