"""Weights of a KDA layer.

Owns: the packed form. Read by: `kernels.units`, the executor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kimi_k3.kernels.attn_res import prepared as attn_res
from kimi_k3.kernels.common import Constants, Get
from kimi_k3.kernels.oproj import prepared as oproj
from kimi_k3.kernels.projection import prepared as projection


class KdaRowWeights(NamedTuple):
    """What a KDA layer of one rank applies to every row alone: H heads of width K, W = H*K."""

    score: Tensor
    """[D], see `attn_res.prepared`."""
    gain: Tensor
    """[D], see `attn_res.prepared`."""
    in_proj: Tensor
    """[q W | k W | v W | output gate W | decay gate rank K | beta H, D]."""


class KdaTokenWeights(NamedTuple):
    """What it applies to a request's tokens one after the other; C = 3*W convolved channels."""

    taps: Tensor
    """[T, C] convolution weights of q | k | v, oldest tap first."""
    decay_up: Tensor
    """[W, K] second half of the low-rank decay gate."""
    decay_bias: Tensor
    """[H, K]."""
    decay_speed: Tensor
    """[H, 1] exp(A_log)."""
    norm: Tensor
    """[V] gain of the output norm."""


class KdaWeights(NamedTuple):
    """One KDA layer of one rank."""

    row: KdaRowWeights
    token: KdaTokenWeights
    out_proj: Tensor
    """[D, W]."""

    def flat(self) -> list[Tensor]:
        """In the order the unit `kda` takes them."""
        return [*self.row, *self.token, self.out_proj]


def widths(c: Constants) -> list[int]:
    """Rows of `KdaRowWeights.in_proj`: q|k|v, output gate, decay gate, beta."""
    width = c.kda_heads * c.kda_head_dim
    return [3 * width, width, c.kda_head_dim, c.kda_heads]


def pack(get: Get, c: Constants) -> KdaWeights:
    """Pack one layer. Only the decay gate's first half is replicated; the rest is head-sharded."""
    width = c.kda_heads * c.kda_head_dim
    names = ("q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj")
    taps = torch.cat([get(f"self_attn.{name}_conv1d.weight") for name in "qkv"]).flatten(1)
    # The released checkpoint stores A_log longer than there are heads.
    speed = get("self_attn.A_log").reshape(-1)[: c.kda_heads].exp()
    row = KdaRowWeights(
        *attn_res.pack(get, "self_attention_res", "input_layernorm"),
        in_proj=projection.pack(
            (sum(widths(c)), c.hidden), *(get(f"self_attn.{name}.weight") for name in names)
        ),
    )
    token = KdaTokenWeights(
        taps=taps.t().contiguous(),
        decay_up=projection.pack((width, c.kda_head_dim), get("self_attn.f_b_proj.weight")),
        decay_bias=get("self_attn.dt_bias").reshape(c.kda_heads, -1).clone(),
        decay_speed=speed[:, None],
        norm=get("self_attn.o_norm.weight").clone(),
    )
    return KdaWeights(row, token, oproj.pack(get, (c.hidden, width)))
