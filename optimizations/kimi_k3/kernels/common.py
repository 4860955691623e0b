"""Pieces several operations share.

Owns: RMS norm, SiTU, the constants kernels are specialised to. Does not own: anything with state.
Read by: portable and prepared kernels, `units`, `compiler`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kimi_k3.dims import Dims

Get = Callable[[str], Tensor]
"""Weight of one module by the end of its checkpoint name, rank-local."""


class Constants(NamedTuple):
    """All that compiled code depends on besides the shapes of its arguments.

    Depth and vocabulary are absent on purpose: models that differ only there share their code.
    Head counts and widths are those of one rank.
    """

    tp: int
    hidden: int
    eps: float
    kda_heads: int
    kda_head_dim: int
    gate_lower_bound: float
    mla_heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    v_head_dim: int
    experts: int
    top_k: int
    latent: int
    shared_inter: int
    routed_scaling: float
    situ_beta: float
    situ_linear_beta: float

    @classmethod
    def of(cls, dims: Dims, tp: int) -> Constants:
        """Constants of one of `tp` ranks. Raises ValueError where `tp` does not divide a size."""
        rank = dims.rank(tp)
        local = {"tp", "kda_heads", "mla_heads", "shared_inter"}
        return cls(*(getattr(rank if name in local else dims, name) for name in cls._fields))


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x [..., D] scaled to unit mean square over D, times gain [D]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU, a bounded gated activation, elementwise over equal shapes.

    [beta tanh(gate / beta) sigmoid(gate)] [linear_beta tanh(up / linear_beta)]; its magnitude
    stays below beta * linear_beta. Kimi K3 technical report (arXiv 2607.24653), section 2.
    """
    bounded = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
    return bounded * (linear_beta * torch.tanh(up / linear_beta))
