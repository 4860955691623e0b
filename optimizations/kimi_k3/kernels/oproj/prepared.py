"""Weights of the output projection.

Owns: the packed form. Read by: the attention operations' `prepared` modules.
"""

from __future__ import annotations

from torch import Tensor

from kimi_k3.kernels.common import Get
from kimi_k3.kernels.projection.prepared import pack as pack_matrices


def pack(get: Get, shape: tuple[int, int]) -> Tensor:
    """Row-parallel output projection, `shape` = [D, H*V of this rank]."""
    return pack_matrices(shape, get("self_attn.o_proj.weight"))
