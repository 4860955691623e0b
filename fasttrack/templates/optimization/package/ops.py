"""The ops of the path. Stock and candidate start out equal: change the candidate."""

from __future__ import annotations

from torch import Tensor


def stock(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """x [B, N], weight [N], residual [B, N], one float dtype -> x * weight + residual [B, N]."""
    return x * weight + residual


def candidate(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """As `stock`; this is the function to optimise."""
    return stock(x, weight, residual)
