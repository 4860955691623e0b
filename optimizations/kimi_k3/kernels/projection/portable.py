"""Linear maps, several of one input as one product.

Owns: the products and their split. Does not own: what is packed together. Read by:
`kernels.units` and the portable kernels that end in a product.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, K], weight [N, K] -> [B, N]."""
    return x @ weight.t()


def linear_per_head(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, H, K], weight [H, N, K] -> [B, H, N].

    Plain dot products, which fuse: a batched GEMM over so few rows and heads is mostly its call.
    """
    return (x[:, :, None] * weight).sum(-1)


def project(x: Tensor, packed: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
    """x [B, K], packed [sum(widths), K] -> one [B, width] per width, views of one product."""
    return linear(x, packed).split(list(widths), dim=-1)
