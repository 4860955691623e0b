"""Mixing over depth: softmax attention of a token over its stored blocks and running prefix.

Owns: the maths of one mix site for a batch of tokens. Does not own: who adds to the prefix and
when a block is stored (`oproj.portable.settle`, the executor). Read by: `kernels.units`.
Source: Kimi K3 technical report (arXiv 2607.24653), section 2.2, equations 8-10.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.kernels.common import rms_norm


def site(
    prefix: Tensor, bank: Tensor, sources: Tensor, score: Tensor, gain: Tensor, eps: float
) -> Tensor:
    """Mix the first `sources` blocks and the prefix, then apply the layer norm that follows.

    prefix [B, D], bank [B, N, D], score [D] (res-norm gain times res-proj row) and gain [D] of
    one float dtype, sources int64 [] in 0..N -> [B, D].
    Blocks from `sources` on are not used, whatever they hold, NaN included.
    """
    stored = torch.arange(bank.shape[1], device=bank.device) < sources
    # A weight of zero does not silence a NaN, so unused blocks are emptied, not only masked.
    stack = torch.cat((torch.where(stored[:, None], bank, 0.0), prefix[:, None]), dim=1)
    scores = (stack * score).sum(-1) * torch.rsqrt(stack.square().mean(-1) + eps)
    used = torch.cat((stored, stored.new_ones(1)))
    depth = torch.softmax(scores.masked_fill(~used, float("-inf")), dim=-1)
    return rms_norm((depth[:, :, None] * stack).sum(1), gain, eps)
