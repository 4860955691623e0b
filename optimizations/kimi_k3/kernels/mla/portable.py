"""Multi-head latent attention in absorbed form, q query tokens per request.

Owns: query absorption, attention over gathered cache rows, value projection and gate. Does not
own: which cache rows a request has (the executor works them out once per step).
Read by: `kernels.units`.
Source: Kimi K3 technical report (arXiv 2607.24653), section 2.1; DeepSeek-V2 (arXiv 2405.04434),
section 2.1, for the absorption. K3 rotates nothing: the shared key is scored as projected.
B requests, H rank-local heads, L latent width, R shared key width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.kernels.projection.portable import linear_per_head


def absorb(q: Tensor, key_up: Tensor) -> Tensor:
    """Queries [B, H, nope + R], key_up [H, L, nope] -> queries on cache rows [B, H, L + R]."""
    nope = key_up.shape[2]
    latent = linear_per_head(q[:, :, :nope], key_up)
    return torch.cat((latent, q[:, :, nope:]), dim=-1)


def attend(query: Tensor, rows: Tensor, visible: Tensor, latent: int, scale: float) -> Tensor:
    """query [q, B, H, L + R], rows [B, T, L + R], visible bool [B, q, T] -> [q, B, H, L].

    Tokens and heads share a request's rows, so they are one side of one product. Rows that are
    not visible get weight zero, and must be finite.
    """
    tokens, batch, heads, width = query.shape
    sides = _swapped(query).view(batch, tokens * heads, width)
    scores = torch.bmm(sides, rows.transpose(1, 2)).view(batch, tokens, heads, -1) * scale
    weights = torch.softmax(torch.where(visible[:, :, None], scores, float("-inf")), dim=-1)
    mixed = torch.bmm(weights.view(batch, tokens * heads, -1), rows[:, :, :latent])
    return _swapped(mixed.view(batch, tokens, heads, latent))


def _swapped(x: Tensor) -> Tensor:
    """x [m, n, ...] -> [n, m, ...] in memory too.

    Said so that no tracer asks whether a size is one, which would make that a case of its own.
    """
    return x.transpose(0, 1).clone(memory_format=torch.contiguous_format)


def values(o: Tensor, value_up: Tensor, gate: Tensor) -> Tensor:
    """o [B, H, L], value_up [H, V, L], gate [B, H*V] -> gated heads [B, H*V]."""
    return linear_per_head(o, value_up).flatten(1) * torch.sigmoid(gate)
