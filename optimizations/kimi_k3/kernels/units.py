"""Compile units: the functions that really run, one compiled call each.

Owns: how operations are joined between two exchanges of ranks, what each unit writes in place,
which axes may vary between calls. Does not own: the order of layers or the exchanges (executor).
Read by: `compiler`, the executor, kernel cases.

A step of one layer is `kda` or `mla`, a sum over ranks, then `dense`, or `moe`; with several
ranks `moe` is cut at its two exchanges into `moe_front`, `experts` and `moe_tail`. `final` ends
the step. Activations come first, weights after, in the order of their packed tuple.

A row that owns no state, padding for one, computes something that is discarded; what it points
at (slot 0, cache row 0) is written back as it was.

B rows, D hidden, N stored blocks, T context. `sites` int64 [3] = stored blocks at the attention
site, at the MLP site, and 1 where the prefix restarts with this layer's attention output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kimi_k3.kernels.attn_res.portable import site
from kimi_k3.kernels.common import Constants, rms_norm, situ
from kimi_k3.kernels.kda import portable as kda_ops
from kimi_k3.kernels.kda.prepared import KdaWeights
from kimi_k3.kernels.kda.prepared import widths as kda_widths
from kimi_k3.kernels.mla import portable as mla_ops
from kimi_k3.kernels.mla.prepared import MlaWeights
from kimi_k3.kernels.mla.prepared import widths as mla_widths
from kimi_k3.kernels.moe import portable as moe_ops
from kimi_k3.kernels.moe.prepared import DenseWeights, ExpertWeights, FrontWeights, TailWeights
from kimi_k3.kernels.moe.prepared import widths as moe_widths
from kimi_k3.kernels.oproj.portable import partial, settle
from kimi_k3.kernels.projection.portable import linear, project


def kda(
    c: Constants,
    prefix: Tensor,
    bank: Tensor,
    sites: Tensor,
    conv: Tensor,
    recurrent: Tensor,
    slots: Tensor,
    owned: Tensor,
    *weights: Tensor,
) -> Tensor:
    """Attention half of a KDA layer: [B, D], this rank's share.

    prefix [B, D], bank [B, N, D]; conv [slots, T-1, C] and recurrent [slots, H, V, K] are updated
    in place at slots int64 [B] where owned bool [B].
    """
    w = KdaWeights(*weights)
    x = site(prefix, bank, sites[0], w.score, w.gain, c.eps)
    qkv, gate, low, beta = project(x, w.in_proj, kda_widths(c))
    heads = (c.kda_heads, c.kda_head_dim)

    history = conv[slots]
    convolved, shifted = kda_ops.convolve(qkv, history, w.taps)
    conv.index_put_((slots,), torch.where(owned[:, None, None], shifted, history))

    q, k, v = convolved.unflatten(-1, (3, *heads)).unbind(1)
    q, k = kda_ops.unit(q) * c.kda_head_dim**-0.5, kda_ops.unit(k)
    raw = linear(low, w.decay_up).unflatten(-1, heads)
    factors = kda_ops.decay(raw, w.decay_speed, w.decay_bias, c.gate_lower_bound)
    state = recurrent[slots]
    o, advanced = kda_ops.recur(state, q, k, v, factors, torch.sigmoid(beta))
    recurrent.index_put_((slots,), torch.where(owned[:, None, None, None], advanced, state))

    normed = kda_ops.gated_norm(o, gate.unflatten(-1, heads), w.norm)
    return partial(normed.flatten(1), w.out_proj)


def mla(
    c: Constants,
    prefix: Tensor,
    bank: Tensor,
    sites: Tensor,
    cache: Tensor,
    write: Tensor,
    writable: Tensor,
    rows: Tensor,
    visible: Tensor,
    *weights: Tensor,
) -> Tensor:
    """Attention half of an MLA layer: [B, D], this rank's share.

    prefix [B, D], bank [B, N, D]; the new row goes to cache [rows, L + R] at write int64 [B]
    where writable bool [B]. Context of a request: cache rows `rows` int64 [B, T], the written one
    included, that are visible bool [B, T]; entries that are not visible repeat one that is.
    """
    w = MlaWeights(*weights)
    x = site(prefix, bank, sites[0], w.score, w.gain, c.eps)
    low, latent, key, gate = project(x, w.in_proj, mla_widths(c))

    new = torch.cat((rms_norm(latent, w.latent_norm, c.eps), key), dim=-1)
    cache.index_put_((write,), torch.where(writable[:, None], new, cache[write]))

    q = linear(rms_norm(low, w.query_norm, c.eps), w.query_up)
    query = mla_ops.absorb(q.unflatten(-1, (c.mla_heads, c.nope + c.rope)), w.key_up)
    scale = (c.nope + c.rope) ** -0.5
    o = mla_ops.attend(query, cache[rows], visible, c.kv_lora, scale)
    return partial(mla_ops.values(o, w.value_up, gate), w.out_proj)


def dense(
    c: Constants, prefix: Tensor, bank: Tensor, sites: Tensor, delta: Tensor, *weights: Tensor
) -> Tensor:
    """MLP half of a dense layer: [B, D], this rank's share. prefix [B, D] takes delta in place."""
    w = DenseWeights(*weights)
    settled = settle(prefix, delta, sites[2] > 0)
    x = site(settled, bank, sites[1], w.score, w.gain, c.eps)
    gate, up = linear(x, w.gate_up).chunk(2, dim=-1)
    prefix.copy_(settled)
    return linear(situ(gate, up, c.situ_beta, c.situ_linear_beta), w.down)


def _front(
    c: Constants, settled: Tensor, bank: Tensor, sites: Tensor, w: FrontWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """Router logits and latent of this rank's share, activated shared expert."""
    x = site(settled, bank, sites[1], w.score, w.gain, c.eps)
    logits, z, gate, up = project(x, w.in_proj, moe_widths(c))
    return logits, z, situ(gate, up, c.situ_beta, c.situ_linear_beta)


def _experts(
    c: Constants, logits: Tensor, z: Tensor, shared: Tensor, w: ExpertWeights
) -> tuple[Tensor, Tensor]:
    """This rank's share of the routed sum [B, L] and of the shared expert [B, D]."""
    ids, gains = moe_ops.route(logits, w.bias, c.top_k, c.routed_scaling)
    routed = moe_ops.experts(z, ids, gains, w.w13, w.w2, c.situ_beta, c.situ_linear_beta)
    return routed, linear(shared, w.shared_down)


def _tail(c: Constants, routed: Tensor, shared: Tensor, w: TailWeights) -> Tensor:
    """Output of the MoE [B, D]. The norm needs the sum over ranks, so it cannot move before it."""
    return linear(rms_norm(routed, w.latent_norm, c.eps), w.latent_up) + shared


def moe(
    c: Constants, prefix: Tensor, bank: Tensor, sites: Tensor, delta: Tensor, *weights: Tensor
) -> None:
    """MLP half of a latent MoE layer on a single rank.

    prefix [B, D] takes `delta` [B, D], then the MoE's output, in place. Weights: those of
    `moe_front`, `experts` and `moe_tail`, joined.
    """
    front, expert = len(FrontWeights._fields), len(ExpertWeights._fields)
    settled = settle(prefix, delta, sites[2] > 0)
    logits, z, inner = _front(c, settled, bank, sites, FrontWeights(*weights[:front]))
    own = ExpertWeights(*weights[front : front + expert])
    routed, shared = _experts(c, logits, z, inner, own)
    tail = TailWeights(*weights[front + expert :])
    prefix.copy_(settled + _tail(c, routed, shared, tail))


def moe_front(
    c: Constants, prefix: Tensor, bank: Tensor, sites: Tensor, delta: Tensor, *weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Up to the first exchange: this rank's [B, (E + L)/tp] to gather, its shared inner [B, S].

    prefix [B, D] takes `delta` [B, D] in place.
    """
    settled = settle(prefix, delta, sites[2] > 0)
    logits, z, inner = _front(c, settled, bank, sites, FrontWeights(*weights))
    prefix.copy_(settled)
    return torch.cat((logits, z), dim=-1), inner


def experts(c: Constants, gathered: Tensor, shared: Tensor, *weights: Tensor) -> Tensor:
    """From the gathered [B, E + L] to the second exchange: this rank's [B, L + D] to sum.

    `gathered` holds the ranks' parts one after the other; shared [B, S] stayed on its rank.
    """
    logits, z, *_ = gathered.unflatten(-1, (c.tp, -1)).split(moe_widths(c)[:2], dim=-1)
    own = ExpertWeights(*weights)
    return torch.cat(_experts(c, logits.flatten(1), z.flatten(1), shared, own), dim=-1)


def moe_tail(c: Constants, prefix: Tensor, summed: Tensor, *weights: Tensor) -> None:
    """prefix [B, D] takes the MoE's output in place; summed [B, L + D] over ranks."""
    routed, shared = summed.split([c.latent, prefix.shape[1]], dim=-1)
    prefix.add_(_tail(c, routed, shared, TailWeights(*weights)))


def final(c: Constants, prefix: Tensor, bank: Tensor, *weights: Tensor) -> Tensor:
    """Mix of every stored block and the prefix, normalised: [B, D]. Weights: score, gain [D]."""
    blocks = torch.full((), bank.shape[1], dtype=torch.int64, device=bank.device)
    score, gain = weights
    return site(prefix, bank, blocks, score, gain, c.eps)


@dataclass(frozen=True)
class Unit:
    """A function to compile, and which leading axes of its activations vary between calls."""

    function: Callable[..., Tensor | tuple[Tensor, ...] | None]
    axes: tuple[tuple[str, ...], ...]
    """Per activation: names of its leading axes that vary, `batch`, `context`, `slots`, `rows`."""


_BATCH = ("batch",)
_COMMON = (_BATCH, _BATCH, ())  # prefix, bank, sites

UNITS: Mapping[str, Unit] = {
    "kda": Unit(kda, (*_COMMON, ("slots",), ("slots",), _BATCH, _BATCH)),
    "mla": Unit(
        mla, (*_COMMON, ("rows",), _BATCH, _BATCH, ("batch", "context"), ("batch", "context"))
    ),
    "dense": Unit(dense, (*_COMMON, _BATCH)),
    "moe": Unit(moe, (*_COMMON, _BATCH)),
    "moe_front": Unit(moe_front, (*_COMMON, _BATCH)),
    "experts": Unit(experts, (_BATCH, _BATCH)),
    "moe_tail": Unit(moe_tail, (_BATCH, _BATCH)),
    "final": Unit(final, (_BATCH, _BATCH)),
}
