"""Latent mixture of experts: sigmoid router on the hidden state, experts in a narrower space.

Owns: routing, routed experts, the latent norm, the sum with the shared experts. Read by:
`decoder`, oracles. Everything here is pointwise in tokens, so there is no separate step form.
Source: Kimi K3 technical report, section 2.3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.reference.basic import linear, mlp, rms_norm, situ
from kimi_k3.reference.weights import Scope, Weights

WEIGHT_SUM_EPS = 1e-20
"""Keeps the renormalisation finite where every selected score underflows."""


class Routing(NamedTuple):
    """Experts of each token, best first."""

    ids: Tensor
    """[..., top_k] int64, distinct."""
    weights: Tensor
    """[..., top_k], summing to the routed scaling factor."""


def route(logits: Tensor, bias: Tensor, top_k: int, scaling: float) -> Routing:
    """logits [..., experts], bias [experts] -> the `top_k` experts of each token.

    The bias takes part in the selection only; weights come from the unbiased scores of the selected
    experts. Equal keys go to the lower expert number.
    """
    score = torch.sigmoid(logits)
    # A stable sort, because topk promises no order among equals.
    ids = torch.sort(score + bias, dim=-1, descending=True, stable=True).indices[..., :top_k]
    chosen = score.gather(-1, ids)
    return Routing(ids, chosen / (chosen.sum(-1, keepdim=True) + WEIGHT_SUM_EPS) * scaling)


def expert(weights: Weights, dims: Dims, number: int, z: Tensor) -> Tensor:
    """Routed expert `number` on z [..., latent] -> [..., latent]; w1 gate, w3 up, w2 down."""
    own = Scope(weights, f"experts.{number}.")
    gate, up = linear(z, own["w1.weight"]), linear(z, own["w3.weight"])
    inner = situ(gate, up, dims.situ_beta, dims.situ_linear_beta)
    return linear(inner, own["w2.weight"])


def routed(weights: Weights, dims: Dims, z: Tensor, routing: Routing) -> Tensor:
    """Weighted sum of each token's experts, z [T, latent] -> [T, latent]."""
    total = torch.zeros_like(z)
    for number in routing.ids.unique().tolist():
        token, slot = (routing.ids == number).nonzero(as_tuple=True)
        share = routing.weights[token, slot].unsqueeze(-1)
        total[token] += share * expert(weights, dims, number, z[token])
    return total


def forward(weights: Weights, dims: Dims, x: Tensor) -> Tensor:
    """Latent MoE of x [T, hidden] -> [T, hidden], routed part plus shared experts.

    Router logits are in the dtype of `x`; a BF16 router would select other experts.
    """
    bias = weights["gate.e_score_correction_bias"]
    routing = route(linear(x, weights["gate.weight"]), bias, dims.top_k, dims.routed_scaling)
    z = linear(x, weights["routed_expert_down_proj.weight"])
    total = routed(weights, dims, z, routing)
    normed = rms_norm(total, weights["routed_expert_norm.weight"], dims.eps)
    shared = mlp(Scope(weights, "shared_experts."), dims, x)
    return linear(normed, weights["routed_expert_up_proj.weight"]) + shared
