"""A KDA layer in two pieces: over all rows at once, then token by token.

Owns: the cut between what rows do alone and what a request's tokens do one after the other, and
what a token writes in place. Does not own: joining the pieces (`kernels.units` fuses them for one
token per request, the executor calls them for several). Read by: `kernels.units`.

A verification of q tokens per request projects all B*q rows in one product, then advances every
request q times; each token leaves its states in a slot of its own, so that any number of tokens
can be kept. Neither piece depends on q, so two packages serve every q.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.kernels.attn_res.portable import site
from kimi_k3.kernels.common import Constants
from kimi_k3.kernels.kda import portable as ops
from kimi_k3.kernels.kda.prepared import KdaRowWeights, KdaTokenWeights, widths
from kimi_k3.kernels.projection.portable import linear


def kda_project(
    c: Constants, prefix: Tensor, bank: Tensor, sites: Tensor, *weights: Tensor
) -> Tensor:
    """Mix site and packed input projection: prefix [B, D], bank [B, N, D] -> [B, sum(widths)]."""
    w = KdaRowWeights(*weights)
    return linear(site(prefix, bank, sites[0], w.score, w.gain, c.eps), w.in_proj)


def kda_token(
    c: Constants,
    projected: Tensor,
    conv: Tensor,
    recurrent: Tensor,
    source: Tensor,
    target: Tensor,
    owned: Tensor,
    *weights: Tensor,
) -> Tensor:
    """Advance every request by one token: projected [B, sum(widths)] -> heads [B, H*V].

    conv [slots, T-1, C] and recurrent [slots, H, V, K] are read at source int64 [B] and written in
    place at target int64 [B] where owned bool [B]; elsewhere the target keeps what it holds.
    """
    w = KdaTokenWeights(*weights)
    qkv, gate, low, beta = projected.split(widths(c), dim=-1)
    heads = (c.kda_heads, c.kda_head_dim)

    held = conv[target]
    convolved, shifted = ops.convolve(qkv, conv[source], w.taps)
    conv.index_put_((target,), torch.where(owned[:, None, None], shifted, held))

    q, k, v = convolved.unflatten(-1, (3, *heads)).unbind(1)
    q, k = ops.unit(q) * c.kda_head_dim**-0.5, ops.unit(k)
    raw = linear(low, w.decay_up).unflatten(-1, heads)
    factors = ops.decay(raw, w.decay_speed, w.decay_bias, c.gate_lower_bound)
    kept = recurrent[target]
    o, advanced = ops.recur(recurrent[source], q, k, v, factors, torch.sigmoid(beta))
    recurrent.index_put_((target,), torch.where(owned[:, None, None, None], advanced, kept))
    return ops.gated_norm(o, gate.unflatten(-1, heads), w.norm).flatten(1)
