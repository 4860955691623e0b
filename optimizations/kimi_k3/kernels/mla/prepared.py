"""Weights of an MLA layer.

Owns: the packed form. Read by: `kernels.units`, the executor.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kimi_k3.kernels.attn_res import prepared as attn_res
from kimi_k3.kernels.common import Constants, Get
from kimi_k3.kernels.oproj import prepared as oproj
from kimi_k3.kernels.projection import prepared as projection


class MlaWeights(NamedTuple):
    """One MLA layer of one rank: H heads, L latent width, R shared key width."""

    score: Tensor
    """[D], see `attn_res.prepared`."""
    gain: Tensor
    """[D], see `attn_res.prepared`."""
    in_proj: Tensor
    """[query latent | key-value latent L + R | output gate H*V, D]."""
    query_norm: Tensor
    """[query latent]."""
    latent_norm: Tensor
    """[L]."""
    query_up: Tensor
    """[H * (nope + R), query latent]."""
    key_up: Tensor
    """[H, L, nope]."""
    value_up: Tensor
    """[H, V, L]."""
    out_proj: Tensor
    """[D, H*V]."""


def widths(c: Constants) -> list[int]:
    """Rows of `MlaWeights.in_proj`: query latent, key-value latent, shared key, gate."""
    return [c.q_lora, c.kv_lora, c.rope, c.mla_heads * c.v_head_dim]


def pack(get: Get, c: Constants) -> MlaWeights:
    """Pack one layer. Both latent projections are replicated; the rest is head-sharded."""
    names = ("q_a_proj", "kv_a_proj_with_mqa", "g_proj")
    joint = get("self_attn.kv_b_proj.weight").reshape(c.mla_heads, -1, c.kv_lora)
    keys, values = joint.split([c.nope, c.v_head_dim], dim=1)
    return MlaWeights(
        *attn_res.pack(get, "self_attention_res", "input_layernorm"),
        in_proj=projection.pack(
            (sum(widths(c)), c.hidden), *(get(f"self_attn.{name}.weight") for name in names)
        ),
        query_norm=get("self_attn.q_a_layernorm.weight").clone(),
        latent_norm=get("self_attn.kv_a_layernorm.weight").clone(),
        query_up=projection.pack(
            (c.mla_heads * (c.nope + c.rope), c.q_lora), get("self_attn.q_b_proj.weight")
        ),
        key_up=keys.transpose(1, 2).contiguous(),
        value_up=values.contiguous(),
        out_proj=oproj.pack(get, (c.hidden, c.mla_heads * c.v_head_dim)),
    )
