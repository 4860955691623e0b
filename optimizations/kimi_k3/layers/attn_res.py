"""AttnRes: each sub-layer reads a learned mixture over depth instead of a residual sum.

Owns: the bank of depth sources of one forward and the mixing site. Does not own: which layers open
a block (`dims`). Source: Kimi K3 technical report (arXiv 2607.24653), section 2.2, equations 8-10.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kimi_k3.dims import Dims
from kimi_k3.layers.common import rms_norm
from kimi_k3.layers.loading import Slots, into, parameter


class Bank:
    """Depth sources of every token of one step: finished blocks, then the running prefix.

    Finishing a block freezes the prefix where it lies and starts a new one in the next place, so
    no source is ever copied, and the length of each is computed once.
    """

    def __init__(self, dims: Dims, embedded: Tensor, floor: Tensor) -> None:
        """`embedded` [T, hidden] is the first prefix; `floor` is sqrt(hidden * eps), FP32."""
        places = dims.blocks + 1
        self.sources = embedded.new_empty(places, *embedded.shape)
        self.lengths = embedded.new_empty(places, embedded.shape[0], dtype=torch.float32)
        self.floor = floor
        self.depth = 0
        self.prefix = self.sources[0]
        self.prefix.copy_(embedded)
        self._measure()

    def _measure(self) -> None:
        """sqrt(sum of squares + hidden * eps), which is sqrt(hidden) times the root mean square."""
        length = torch.linalg.vector_norm(self.prefix, dim=-1, dtype=torch.float32)
        torch.hypot(length, self.floor, out=self.lengths[self.depth])

    def add(self, delta: Tensor) -> None:
        """Add a sub-layer's output [T, hidden] to the prefix (rounded once to the bank's dtype)."""
        self.prefix.add_(delta)
        self._measure()

    def restart(self, first: Tensor) -> None:
        """Freeze the prefix as a finished block; `first` [T, hidden] starts the next one."""
        self.depth += 1
        self.prefix = self.sources[self.depth]
        self.prefix.copy_(first)
        self._measure()

    def mix(self, gain: Tensor) -> Tensor:
        """Softmax mixture [T, hidden] FP32 over blocks and prefix; the raw sources are mixed.

        score = <source, gain> / length, where `gain` [hidden] carries the factor sqrt(hidden).
        """
        if not self.depth:
            return self.prefix.float()
        sources = self.sources[: self.depth + 1].float()
        scores = torch.matmul(sources, gain).div_(self.lengths[: self.depth + 1])
        return (torch.softmax(scores, 0).unsqueeze(-1) * sources).sum(0)


class Site(nn.Module):
    """One mixing site followed by the layer norm of the sub-layer it feeds."""

    def __init__(self, dims: Dims) -> None:
        """Parameters: scoring gains and the output norm's gain, all [hidden]."""
        super().__init__()
        self.eps = dims.eps
        self.res_norm = parameter(dims.hidden)
        self.res_proj = parameter(1, dims.hidden)
        self.norm = parameter(dims.hidden)
        self.gain = self.norm_gain = torch.empty(0)

    def slots(self, res: str, norm: str) -> Slots:
        """Checkpoint names: `res` is the common start of the scoring gains' names."""
        return {
            f"{res}_norm.weight": into(self.res_norm),
            f"{res}_proj.weight": into(self.res_proj),
            f"{norm}.weight": into(self.norm),
        }

    def finish_loading(self) -> None:
        """Form the product of the two scoring gains and sqrt(hidden), and the norm's gain: FP32."""
        self.gain = self.res_norm.float() * self.res_proj.float()[0] * self.norm.numel() ** 0.5
        self.norm_gain = self.norm.float()

    def forward(self, bank: Bank, round_first: bool = False) -> Tensor:
        """Normalised mixture [T, hidden] in the bank's dtype.

        `round_first`: round the mixture to that dtype before the norm, as the last site does.
        """
        mixed = bank.mix(self.gain)
        dtype = bank.sources.dtype
        if round_first:
            mixed = mixed.to(dtype).float()
        return rms_norm(mixed, self.norm_gain, self.eps).to(dtype)
