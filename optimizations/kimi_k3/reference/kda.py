"""Kimi delta attention: short convolution, bounded channel-wise decay, delta rule, gated norm.

Owns: the maths of one KDA layer, as a parallel form over a sequence (`forward`) and as a
recurrence over single tokens (`step`). Does not own: caches of an engine. Read by: `decoder`,
oracles.

State of one request: conv [taps, 3*H*D], the projections before the convolution of the last tokens,
q|k|v channels, oldest first; recurrent [H, V, K]. The two forms share the projections and nothing
of the recurrence, so that their agreement means something.
Source: Kimi K3 technical report, section 2.1; Kimi Linear technical report (arXiv 2510.26692).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kimi_k3.dims import Dims
from kimi_k3.reference.basic import linear, rms_norm
from kimi_k3.reference.weights import Weights

L2_EPS = 1e-6
"""Added to the sum of squares of a query or key before the root."""

NORM_EPS = 1e-5
"""Of the gated output norm. The released model fixes it, whatever `rms_norm_eps` says."""

CHUNK = 64
"""Tokens `forward` handles at once; its memory grows with the square of this."""


class Projected(NamedTuple):
    """Everything a KDA layer computes from its input alone; leading axes are those of the input."""

    qkv: Tensor
    """[..., 3*H*D] before the convolution, q|k|v."""
    log_decay: Tensor
    """[..., H, K] natural logarithm of the decay of each key channel, negative."""
    beta: Tensor
    """[..., H] write strength in (0, 1)."""
    gate: Tensor
    """[..., H, V] output gate before its sigmoid."""


class Output(NamedTuple):
    """What both forms return."""

    y: Tensor
    """[T or B, hidden]."""
    conv: Tensor
    """New convolution state."""
    recurrent: Tensor
    """New recurrent state."""


def log_decay(raw: Tensor, a_log: Tensor, dt_bias: Tensor, bound: float | None) -> Tensor:
    """raw [..., H, K], a_log [H], dt_bias [H*K] -> log decay [..., H, K].

    bound * sigmoid(exp(a_log) (raw + dt_bias)), in (bound, 0). Without a bound the layer has
    another activation altogether, -exp(a_log) softplus(raw + dt_bias), which K3 does not use.
    """
    rate = a_log.exp().unsqueeze(-1)
    shifted = raw + dt_bias.view(raw.shape[-2:])
    if bound is None:
        return -rate * functional.softplus(shifted)
    return bound * torch.sigmoid(rate * shifted)


def project(weights: Weights, dims: Dims, x: Tensor) -> Projected:
    """Input projections of x [..., hidden]. `A_log` may be longer than the number of heads."""
    heads, width = dims.kda_heads, dims.kda_head_dim
    split = (*x.shape[:-1], heads, width)
    raw = linear(linear(x, weights["f_a_proj.weight"]), weights["f_b_proj.weight"]).view(split)
    a_log = weights["A_log"].reshape(-1)[:heads]
    return Projected(
        qkv=torch.cat([linear(x, weights[f"{name}_proj.weight"]) for name in "qkv"], -1),
        log_decay=log_decay(raw, a_log, weights["dt_bias"], dims.gate_lower_bound),
        beta=torch.sigmoid(linear(x, weights["b_proj.weight"])),
        gate=linear(x, weights["g_proj.weight"]).view(split),
    )


def conv_weight(weights: Weights) -> Tensor:
    """Depthwise filters of the q|k|v channels, [3*H*D, taps], oldest tap first."""
    filters = torch.cat([weights[f"{name}_conv1d.weight"] for name in "qkv"])
    return filters.reshape(filters.shape[0], -1)


def normalise(convolved: Tensor, dims: Dims) -> tuple[Tensor, Tensor, Tensor]:
    """Convolved channels [..., 3*H*D] -> SiLU -> q, k of unit length, q over sqrt(K); v as it is.

    Each is [..., H, D].
    """
    split = (*convolved.shape[:-1], 3, dims.kda_heads, dims.kda_head_dim)
    q, k, v = functional.silu(convolved).view(split).unbind(-3)
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + L2_EPS) * dims.kda_head_dim**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + L2_EPS)
    return q, k, v


def finish(weights: Weights, o: Tensor, gate: Tensor) -> Tensor:
    """o, gate [..., H, V] -> rms norm per head, times sigmoid(gate), output projection."""
    gated = rms_norm(o, weights["o_norm.weight"], NORM_EPS) * torch.sigmoid(gate)
    return linear(gated.flatten(-2), weights["o_proj.weight"])


# ---- one token per request --------------------------------------------------------------------


def conv_step(qkv: Tensor, conv: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
    """qkv [B, C], conv [B, taps-1, C], filters [C, taps] -> convolved [B, C], new conv."""
    window = torch.cat([conv, qkv.unsqueeze(1)], 1)
    return (window * filters.t()).sum(1), window[:, 1:]


def delta_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the gated delta rule.

    q, k, v, log_decay [B, H, D], beta [B, H], state [B, H, V, K] -> o [B, H, V], new state:
    S = S diag(exp(log_decay)); S += beta (v - S k) k^T; o = S q.
    """
    state = state * log_decay.exp().unsqueeze(-2)
    error = v - (state * k.unsqueeze(-2)).sum(-1)
    update = beta.unsqueeze(-1) * error
    state = state + update.unsqueeze(-1) * k.unsqueeze(-2)
    return (state * q.unsqueeze(-2)).sum(-1), state


def step(weights: Weights, dims: Dims, x: Tensor, conv: Tensor, recurrent: Tensor) -> Output:
    """Decode one token of each request.

    x [B, hidden], conv [B, taps-1, 3*H*D], recurrent [B, H, V, K] -> y [B, hidden], new states.
    """
    projected = project(weights, dims, x)
    convolved, conv = conv_step(projected.qkv, conv, conv_weight(weights))
    q, k, v = normalise(convolved, dims)
    o, recurrent = delta_step(q, k, v, projected.log_decay, projected.beta, recurrent)
    return Output(finish(weights, o, projected.gate), conv, recurrent)


# ---- a whole sequence -------------------------------------------------------------------------


def delta_chunk(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule over T tokens at once, without a recurrence.

    q, k, v, log_decay [T, H, D], beta [T, H], state [H, V, K] -> o [T, H, V], state after token T.

    With G the running sum of log_decay, the writes u solve one unit lower triangular system,
        u_t + beta_t sum_{j<t} <k_t, k_j exp(G_t - G_j)> u_j = beta_t (v_t - S_0 (k_t exp(G_t))),
    because token t sees the state S_0 exp(G_t) + sum_{j<t} u_j (k_j exp(G_t - G_j))^T. Exponents
    are never positive, so nothing overflows however strong the decay.
    """
    q, k, v, total = (t.transpose(0, 1) for t in (q, k, v, log_decay.cumsum(0)))  # [H, T, D]
    beta = beta.t().unsqueeze(-1)
    # The clamp touches later tokens only, which tril drops: their exponents would be positive.
    apart = (total.unsqueeze(2) - total.unsqueeze(1)).clamp(max=0.0).exp()  # [H, t, j, K]
    kept = apart * k.unsqueeze(1)
    key_overlap = (kept * k.unsqueeze(2)).sum(-1).tril(-1)
    query_overlap = (kept * q.unsqueeze(2)).sum(-1).tril()
    fresh = total.exp()
    target = beta * (v - (k * fresh) @ state.transpose(-1, -2))
    unit = torch.eye(k.shape[1], dtype=k.dtype, device=k.device)
    writes = torch.linalg.solve_triangular(
        unit + beta * key_overlap, target, upper=False, unitriangular=True
    )
    o = (q * fresh) @ state.transpose(-1, -2) + query_overlap @ writes
    state = state * fresh[:, -1:] + writes.transpose(-1, -2) @ kept[:, -1]
    return o.transpose(0, 1), state


def forward(weights: Weights, dims: Dims, x: Tensor, conv: Tensor, recurrent: Tensor) -> Output:
    """Run one request over T further tokens.

    x [T, hidden], conv [taps-1, 3*H*D], recurrent [H, V, K] -> y [T, hidden], new states. A new
    request starts from zero states.
    """
    projected = project(weights, dims, x)
    padded = torch.cat([conv, projected.qkv])
    filters = conv_weight(weights).unsqueeze(1)
    convolved = functional.conv1d(padded.t(), filters, groups=filters.shape[0]).t()
    q, k, v = normalise(convolved, dims)
    log_decay, beta = projected.log_decay, projected.beta
    chunks = zip(*(whole.split(CHUNK) for whole in (q, k, v, log_decay, beta)), strict=True)
    outputs = []
    for q, k, v, log_decay, beta in chunks:
        o, recurrent = delta_chunk(q, k, v, log_decay, beta, recurrent)
        outputs.append(o)
    y = finish(weights, torch.cat(outputs), projected.gate)
    return Output(y, padded[padded.shape[0] - conv.shape[0] :], recurrent)
