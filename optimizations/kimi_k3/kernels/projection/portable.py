"""Linear maps that share an input, as one GEMM.

Owns: the product and its split. Does not own: what is packed together. Read by: `kernels.units`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def project(x: Tensor, packed: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
    """x [B, K], packed [K, sum(widths)] -> one [B, width] per width, views of one product."""
    return (x @ packed).split(list(widths), dim=-1)
