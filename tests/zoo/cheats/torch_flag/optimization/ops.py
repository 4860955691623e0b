"""Buys speed with the precision of everybody's matrix products."""

from __future__ import annotations


def prepare() -> None:
    """Called when weights are loaded."""
    from torch.backends import cuda

    cuda.matmul.allow_tf32 = True
