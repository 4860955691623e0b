"""Kimi delta attention for one token per request.

Owns: short convolution, decay gate, delta-rule recurrence, gated output norm. Does not own: the
projections around them, nor which state belongs to which request. Read by: `kernels.units`.
Source: Kimi K3 technical report (arXiv 2607.24653), section 2.1; Kimi Linear (arXiv 2510.26692).
All tensors of a call share one float dtype. B requests, H rank-local heads, K = V head width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kimi_k3.kernels.common import rms_norm

LENGTH_EPS = 1e-6
"""Added to the sum of squares of a query or key."""

NORM_EPS = 1e-5
"""Of the output norm: fixed by the released model, whatever `rms_norm_eps` says."""


def convolve(x: Tensor, history: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution at the newest token, then SiLU.

    x [B, C], history [B, T-1, C] and taps [T, C] oldest first.
    Returns the activated channels [B, C] and the new history [B, T-1, C].
    """
    window = torch.cat((history, x[:, None]), dim=1)
    return functional.silu((window * taps).sum(1)), window[:, 1:]


def decay(raw: Tensor, speed: Tensor, bias: Tensor, lower_bound: float) -> Tensor:
    """Factor in (exp(lower_bound), 1) by which each key channel of a state shrinks.

    raw [B, H, K] from the low-rank gate, speed [H, 1] = exp(A_log), bias [H, K] -> [B, H, K].
    """
    return torch.exp(lower_bound * torch.sigmoid(speed * (raw + bias)))


def unit(x: Tensor) -> Tensor:
    """x [..., K] scaled to unit length over K."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LENGTH_EPS)


def recur(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, factors: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the delta rule, S' = S diag(d) + u k^T with u = beta (v - S diag(d) k).

    state [B, H, V, K]; q, k, factors [B, H, K]; v [B, H, V]; beta [B, H].
    Returns the output S' q [B, H, V] and S'. The output is formed as S diag(d) q + u (k . q), so
    that both products read the old state and a compiler can make them one pass over it.
    """
    faded = state * factors[:, :, None]
    u = beta[:, :, None] * (v - (faded * k[:, :, None]).sum(-1))
    output = (faded * q[:, :, None]).sum(-1) + u * (k * q).sum(-1, keepdim=True)
    return output, faded + u[..., None] * k[:, :, None]


def gated_norm(o: Tensor, gate: Tensor, gain: Tensor) -> Tensor:
    """o and gate [B, H, V], gain [V]: RMS norm per head, times the gate's sigmoid."""
    return rms_norm(o, gain, NORM_EPS) * torch.sigmoid(gate)
