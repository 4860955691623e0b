"""Routing and routed experts of the latent mixture of experts.

Owns: selection, weights, the experts themselves. Does not own: the projections into and out of
the latent space (`kernels.units`). Read by: `kernels.units`.
Source: Kimi K3 technical report (arXiv 2607.24653), section 2.3.
B tokens, E experts, L latent width, I rank-local expert width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.kernels.common import situ

WEIGHT_SUM_EPS = 1e-20
"""Keeps the renormalisation finite where every selected score underflows."""


def positions(keys: Tensor) -> Tensor:
    """Place of each expert in descending order of key, ties to the lower expert number.

    keys [B, E] -> int64 [B, E]. E^2 comparisons, which fuse with what surrounds them, where a
    sort would be a call of its own.
    """
    number = torch.arange(keys.shape[1], device=keys.device)
    mine, other = keys[:, :, None], keys[:, None, :]
    return ((other > mine) | ((other == mine) & (number < number[:, None]))).sum(-1)


def route(logits: Tensor, bias: Tensor, top_k: int, scaling: float) -> tuple[Tensor, Tensor]:
    """Choose `top_k` experts per token by biased score and weight them by unbiased score.

    logits [B, E], bias [E] -> expert numbers int64 [B, top_k], best first, and their weights
    [B, top_k], which sum to `scaling`. Numbers are within 0..E-1 even for NaN logits.
    """
    scores = torch.sigmoid(logits)
    place = torch.arange(top_k, device=logits.device)
    chosen = positions(scores + bias)[:, None] == place[:, None]  # [B, top_k, E]
    number = torch.arange(logits.shape[1], device=logits.device)
    ids = torch.where(chosen, number, 0).sum(-1).clamp(max=logits.shape[1] - 1)
    weights = torch.where(chosen, scores[:, None], 0.0).sum(-1)
    return ids, weights * (scaling / (weights.sum(-1, keepdim=True) + WEIGHT_SUM_EPS))


def experts(
    z: Tensor,
    ids: Tensor,
    weights: Tensor,
    w13: Tensor,
    w2: Tensor,
    beta: float,
    linear_beta: float,
) -> Tensor:
    """Weighted sum of each token's experts; only the selected experts are read.

    z [B, L], ids and weights [B, top_k], w13 [E, 2I, L] gate rows first, w2 [E, L, I] -> [B, L].
    Two GEMMs over all experts with zero weights, the obvious alternative, were slower at every
    batch from 1 to 64 for 16 experts of which 4 are used.
    """
    gate, up = (w13[ids] * z[:, None, None]).sum(-1).chunk(2, dim=-1)
    active = situ(gate, up, beta, linear_beta) * weights[:, :, None]
    return (w2[ids] * active[:, :, None]).sum((1, 3))
