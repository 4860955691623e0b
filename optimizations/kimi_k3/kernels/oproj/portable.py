"""From attention heads back to the prefix.

Owns: the output projection of one rank and the rule by which the prefix takes its sum. Does not
own: the sum over ranks between the two (`runtime.collective`). Read by: `kernels.units`.
Source: Kimi K3 technical report (arXiv 2607.24653), section 2.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.kernels.projection.portable import linear


def partial(heads: Tensor, packed: Tensor) -> Tensor:
    """heads [B, K] of this rank, packed [D, K] -> this rank's share [B, D] of the output."""
    return linear(heads, packed)


def settle(prefix: Tensor, delta: Tensor, restart: Tensor) -> Tensor:
    """New prefix [B, D]: `delta` alone where `restart` (bool []) is set, else their sum.

    A layer that stored its prefix as a block begins the next prefix with its own output.
    """
    return torch.where(restart, delta, prefix + delta)
