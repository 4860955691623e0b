"""Compile units: the functions that really run, one compiled call each.

Owns: how operations are joined between two exchanges of ranks, what each unit writes in place,
which axes may vary between calls. Does not own: the order of layers or the exchanges (executor).
Read by: `compiler`, the executor, kernel cases.

A step of one layer is `kda` or `mla`, a sum over ranks, then `dense`, or `moe`; with several
ranks `moe` is cut at its two exchanges into `moe_front`, `experts` and `moe_tail`. `final` ends
the step. Where requests bring several tokens, `kda` is cut into `kda_project`, `kda_token` once
per token and the output projection; everything else takes tokens as further rows, and `mla` their
order too. Activations come first, weights after, in the order of their packed tuple.

A row that owns no state, padding for one, computes something that is discarded; what it points
at (slot 0, cache row 0) is written back as it was.

B rows, D hidden, N stored blocks, T context; `mla` has B requests of q tokens. `sites` int64 [3] =
stored blocks at the attention site, at the MLP site, and 1 where the prefix restarts with this
layer's attention output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kimi_k3.kernels.attn_res.portable import site
from kimi_k3.kernels.common import Constants, rms_norm, situ
from kimi_k3.kernels.kda.prepared import KdaRowWeights
from kimi_k3.kernels.kda.units import kda_project, kda_token
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
    """Attention half of a KDA layer, one token per request: [B, D], this rank's share.

    prefix [B, D], bank [B, N, D]; conv [slots, T-1, C] and recurrent [slots, H, V, K] are updated
    in place at slots int64 [B] where owned bool [B].
    """
    row = len(KdaRowWeights._fields)
    projected = kda_project(c, prefix, bank, sites, *weights[:row])
    heads = kda_token(c, projected, conv, recurrent, slots, slots, owned, *weights[row:-1])
    return partial(heads, weights[-1])


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
    """Attention half of an MLA layer, q tokens per request: [q * B, D], this rank's share.

    prefix [q, B, D], bank [q, B, N, D]; the new rows go to cache [rows, L + R] at write int64
    [q, B] where writable bool [q, B]. Context of a request: cache rows `rows` int64 [B, T], the
    written ones included, of which a token sees those that are visible bool [B, q, T]; entries
    beyond a request's length repeat one that is within.
    """
    w, shape = MlaWeights(*weights), write.shape
    prefix, bank, write = prefix.flatten(0, 1), bank.flatten(0, 1), write.flatten()
    x = site(prefix, bank, sites[0], w.score, w.gain, c.eps)
    low, latent, key, gate = project(x, w.in_proj, mla_widths(c))

    new = torch.cat((rms_norm(latent, w.latent_norm, c.eps), key), dim=-1)
    cache.index_put_((write,), torch.where(writable.view(-1, 1), new, cache[write]))

    q = linear(rms_norm(low, w.query_norm, c.eps), w.query_up)
    query = mla_ops.absorb(q.unflatten(-1, (c.mla_heads, c.nope + c.rope)), w.key_up)
    scale = (c.nope + c.rope) ** -0.5
    query = query.unflatten(0, shape)
    o = mla_ops.attend(query, cache[rows], visible, c.kv_lora, scale)
    return partial(mla_ops.values(o.flatten(0, 1), w.value_up, gate), w.out_proj)


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
    """Per activation, names of its leading axes that vary: `tokens`, `batch`, `context`, `slots`,
    `rows`."""


_BATCH = ("batch",)
_TOKENS = ("tokens", "batch")
_COMMON = (_BATCH, _BATCH, ())  # prefix, bank, sites

UNITS: Mapping[str, Unit] = {
    "kda": Unit(kda, (*_COMMON, ("slots",), ("slots",), _BATCH, _BATCH)),
    "kda_project": Unit(kda_project, _COMMON),
    "kda_token": Unit(kda_token, (_BATCH, ("slots",), ("slots",), _BATCH, _BATCH, _BATCH)),
    "mla": Unit(
        mla,
        (
            *(_TOKENS, _TOKENS, ()),
            ("rows",),
            *(_TOKENS, _TOKENS),
            ("batch", "context"),
            ("batch", "tokens", "context"),
        ),
    ),
    "dense": Unit(dense, (*_COMMON, _BATCH)),
    "moe": Unit(moe, (*_COMMON, _BATCH)),
    "moe_front": Unit(moe_front, (*_COMMON, _BATCH)),
    "experts": Unit(experts, (_BATCH, _BATCH)),
    "moe_tail": Unit(moe_tail, (_BATCH, _BATCH)),
    "final": Unit(final, (_BATCH, _BATCH)),
}
