"""Multi-head latent attention in absorbed form, one query token per request.

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
    """query [B, H, L + R], rows [B, T, L + R], visible bool [B, T] -> latent output [B, H, L].

    Rows that are not visible get weight zero, and must be finite.
    """
    scores = torch.bmm(query, rows.transpose(1, 2)) * scale
    weights = torch.softmax(scores.masked_fill(~visible[:, None], float("-inf")), dim=-1)
    return torch.bmm(weights, rows[:, :, :latent])


def values(o: Tensor, value_up: Tensor, gate: Tensor) -> Tensor:
    """o [B, H, L], value_up [H, V, L], gate [B, H*V] -> gated heads [B, H*V]."""
    return linear_per_head(o, value_up).flatten(1) * torch.sigmoid(gate)
