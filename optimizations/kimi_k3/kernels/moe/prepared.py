"""Weights of a latent MoE and of a dense MLP.

Owns: the packed forms and the sharding of router and latent down-projection over ranks.
Read by: `kernels.units`, the executor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kimi_k3.kernels.attn_res import prepared as attn_res
from kimi_k3.kernels.common import Constants, Get
from kimi_k3.kernels.projection import prepared as projection


class FrontWeights(NamedTuple):
    """Everything of a latent MoE that reads the layer's input. E experts, S shared width."""

    score: Tensor
    """[D], see `attn_res.prepared`."""
    gain: Tensor
    """[D], see `attn_res.prepared`."""
    in_proj: Tensor
    """[router E/tp | latent L/tp | shared gate S | shared up S, D]: this rank's share of each."""


class ExpertWeights(NamedTuple):
    """Experts of one rank, I = rank-local width."""

    bias: Tensor
    """[E] added to scores for selection only."""
    w13: Tensor
    """[E, 2I, L] gate rows, then up rows."""
    w2: Tensor
    """[E, L, I]."""
    shared_down: Tensor
    """[D, S]."""


class TailWeights(NamedTuple):
    """From the latent space back; every rank holds it whole."""

    latent_norm: Tensor
    """[L]."""
    latent_up: Tensor
    """[D, L]."""


class DenseWeights(NamedTuple):
    """A layer with a plain SiTU MLP, I = rank-local width."""

    score: Tensor
    """[D], see `attn_res.prepared`."""
    gain: Tensor
    """[D], see `attn_res.prepared`."""
    gate_up: Tensor
    """[gate I | up I, D]."""
    down: Tensor
    """[D, I]."""


def widths(c: Constants) -> list[int]:
    """Rows of `FrontWeights.in_proj`: router, latent, shared gate, shared up."""
    return [c.experts // c.tp, c.latent // c.tp, c.shared_inter, c.shared_inter]


def pack(get: Get, c: Constants, rank: int) -> tuple[FrontWeights, ExpertWeights, TailWeights]:
    """Pack one latent MoE layer. Router and down-projection are given whole and cut here."""
    experts, latent, *_ = widths(c)
    moe = "block_sparse_moe."
    router = get(moe + "gate.weight").narrow(0, rank * experts, experts)
    down = get(moe + "routed_expert_down_proj.weight").narrow(0, rank * latent, latent)
    shared = [get(f"{moe}shared_experts.{name}_proj.weight") for name in ("gate", "up", "down")]

    def stack(name: str) -> Tensor:
        return torch.stack([get(f"{moe}experts.{e}.{name}.weight") for e in range(c.experts)])

    return (
        FrontWeights(
            *attn_res.pack(get, "mlp_res", "post_attention_layernorm"),
            in_proj=projection.pack((sum(widths(c)), c.hidden), router, down, shared[0], shared[1]),
        ),
        ExpertWeights(
            bias=get(moe + "gate.e_score_correction_bias").clone(),
            w13=torch.cat((stack("w1"), stack("w3")), dim=1),
            w2=stack("w2"),
            shared_down=projection.pack((c.hidden, c.shared_inter), shared[2]),
        ),
        TailWeights(
            latent_norm=get(moe + "routed_expert_norm.weight").clone(),
            latent_up=projection.pack(
                (c.hidden, c.latent), get(moe + "routed_expert_up_proj.weight")
            ),
        ),
    )


def pack_dense(get: Get, c: Constants) -> DenseWeights:
    """Pack one dense layer."""
    gate, up, down = (get(f"mlp.{name}_proj.weight") for name in ("gate", "up", "down"))
    return DenseWeights(
        *attn_res.pack(get, "mlp_res", "post_attention_layernorm"),
        gate_up=projection.pack((2 * down.shape[1], c.hidden), gate, up),
        down=projection.pack((c.hidden, down.shape[1]), down),
    )
