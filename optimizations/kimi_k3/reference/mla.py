"""Multi-head latent attention without rotation, with a sigmoid output gate.

Owns: the maths of one MLA layer. `forward` expands keys and values from the latent and is the
truth; `step` is the absorbed decode form, which never expands them. Does not own: pages.
Read by: `decoder`, oracles.

The cache holds one row [kv_lora + rope] per token: the normalised latent, then the shared key as
projected. K3 applies no positional encoding, yet the shared key is cached and scored.
Both low-rank norms use `rms_norm_eps`, as vLLM does.
Source: Kimi K3 technical report, section 2.1; DeepSeek-V2 technical report (arXiv 2405.04434).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.reference.basic import linear, rms_norm
from kimi_k3.reference.weights import Weights


class Output(NamedTuple):
    """What both forms return."""

    y: Tensor
    """[T or B, hidden]."""
    rows: Tensor
    """[T or B, kv_lora + rope] cache rows of the new tokens."""


def queries(weights: Weights, dims: Dims, x: Tensor) -> Tensor:
    """x [..., hidden] -> queries [..., H, nope + rope]."""
    low = rms_norm(linear(x, weights["q_a_proj.weight"]), weights["q_a_layernorm.weight"], dims.eps)
    q = linear(low, weights["q_b_proj.weight"])
    return q.view(*x.shape[:-1], dims.mla_heads, dims.qk_head_dim)


def cache_rows(weights: Weights, dims: Dims, x: Tensor) -> Tensor:
    """x [..., hidden] -> cache rows [..., kv_lora + rope]: normalised latent | raw shared key."""
    joint = linear(x, weights["kv_a_proj_with_mqa.weight"])
    latent, shared = joint.split([dims.kv_lora, dims.rope], -1)
    return torch.cat([rms_norm(latent, weights["kv_a_layernorm.weight"], dims.eps), shared], -1)


def up_projections(weights: Weights, dims: Dims) -> tuple[Tensor, Tensor]:
    """The two halves of kv_b: keys [H, nope, kv_lora] and values [H, v, kv_lora]."""
    joint = weights["kv_b_proj.weight"].view(dims.mla_heads, -1, dims.kv_lora)
    keys, values = joint.split([dims.nope, dims.v_head_dim], 1)
    return keys, values


def finish(weights: Weights, x: Tensor, o: Tensor) -> Tensor:
    """o [..., H, v], layer input x [..., hidden] -> gated and projected [..., hidden]."""
    gate = torch.sigmoid(linear(x, weights["g_proj.weight"]))
    return linear(o.flatten(-2) * gate, weights["o_proj.weight"])


def forward(weights: Weights, dims: Dims, x: Tensor, past: Tensor) -> Output:
    """Run one request over T further tokens, keys and values expanded per head.

    x [T, hidden], past [S, kv_lora + rope] rows of earlier tokens, S = 0 for a new request.
    """
    new = cache_rows(weights, dims, x)
    rows = torch.cat([past, new])
    latent, shared = rows.split([dims.kv_lora, dims.rope], -1)
    key_up, value_up = up_projections(weights, dims)
    keys = torch.einsum("sl,hnl->hsn", latent, key_up)
    keys = torch.cat([keys, shared.expand(dims.mla_heads, -1, -1)], -1)
    values = torch.einsum("sl,hvl->hsv", latent, value_up)
    score = torch.einsum("thd,hsd->hts", queries(weights, dims, x), keys) * dims.qk_head_dim**-0.5
    # Token t of this chunk sees the past, itself and what came between.
    hidden_from = torch.ones_like(score[0], dtype=torch.bool).triu(past.shape[0] + 1)
    attention = score.masked_fill(hidden_from, float("-inf")).softmax(-1)
    return Output(finish(weights, x, torch.einsum("hts,hsv->thv", attention, values)), new)


def absorb(weights: Weights, dims: Dims, q: Tensor) -> Tensor:
    """Queries [..., H, nope + rope] -> queries on cache rows [..., H, kv_lora + rope]."""
    key_up, _ = up_projections(weights, dims)
    plain, shared = q.split([dims.nope, dims.rope], -1)
    return torch.cat([torch.einsum("...hn,hnl->...hl", plain, key_up), shared], -1)


def attend(query: Tensor, cache: Tensor, lengths: Tensor, dims: Dims) -> Tensor:
    """query [B, H, row], cache [B, S, row], lengths [B] >= 1 -> latent output [B, H, kv_lora].

    Rows at or beyond a request's length may hold anything, NaN included.
    """
    beyond = torch.arange(cache.shape[1], device=cache.device) >= lengths.unsqueeze(-1)  # [B, S]
    cache = cache.masked_fill(beyond.unsqueeze(-1), 0.0)
    score = torch.einsum("bhr,bsr->bhs", query, cache) * dims.qk_head_dim**-0.5
    attention = score.masked_fill(beyond.unsqueeze(1), float("-inf")).softmax(-1)
    return torch.einsum("bhs,bsl->bhl", attention, cache[..., : dims.kv_lora])


def step(weights: Weights, dims: Dims, x: Tensor, cache: Tensor, lengths: Tensor) -> Output:
    """Decode one token of each request in the absorbed form.

    x [B, hidden], cache [B, S, row] with the rows of earlier tokens, lengths [B] int64 earlier
    tokens per request, 0 allowed, S >= max(lengths). Rows beyond a length are ignored.
    """
    new = cache_rows(weights, dims, x)
    room = cache.new_zeros(cache.shape[0], 1, cache.shape[2])
    cache = torch.cat([cache, room], 1)
    cache[torch.arange(cache.shape[0], device=cache.device), lengths] = new
    query = absorb(weights, dims, queries(weights, dims, x))
    latent = attend(query, cache, lengths + 1, dims)
    _, value_up = up_projections(weights, dims)
    o = torch.einsum("bhl,hvl->bhv", latent, value_up)
    return Output(finish(weights, x, o), new)
