"""Small pieces every stock layer uses: normalisation, activation, plain MLP.

Owns: the calls into vLLM's own CPU or GPU kernels for them. Does not own: weights' names.
Sources: Kimi K3 technical report (arXiv 2607.24653), section 2; the formulas are repeated below.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from vllm import _custom_ops
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear

from kimi_k3.dims import Dims
from kimi_k3.layers.loading import Slots, linear


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, FP32 inside.

    x [..., n] and weight [n] of one dtype. This is vLLM's kernel called directly: its layer class
    goes through a dispatcher that, on a CPU, picks a chain of five PyTorch operators instead.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    # The CPU kernel ignores strides, silently, so a view must become a copy first.
    _custom_ops.rms_norm(out, x.contiguous(), weight, eps)
    return out


class Situ(nn.Module):
    """SiTU: b tanh(g/b) sigmoid(g) * c tanh(u/c) of gate g and up u, b = beta, c = linear beta."""

    scale: Tensor

    def __init__(self, dims: Dims, width: int) -> None:
        """`width`: rank-local width of g and of u."""
        super().__init__()
        scale = torch.tensor([[1 / dims.situ_beta], [1 / dims.situ_linear_beta]])
        self.register_buffer("scale", scale.repeat(1, width).view(-1).float(), persistent=False)
        self.gain = dims.situ_beta * dims.situ_linear_beta
        self.width = width

    def forward(self, gate_up: Tensor) -> Tensor:
        """[..., g | u] to [..., width], FP32 inside, result in the input's dtype."""
        wide = gate_up.float()
        soft = torch.tanh(wide * self.scale)
        out = torch.sigmoid(wide[..., : self.width]).mul_(soft[..., : self.width])
        return out.mul_(soft[..., self.width :]).mul_(self.gain).to(gate_up.dtype)


class MLP(nn.Module):
    """Gated MLP with SiTU, column- then row-parallel."""

    def __init__(self, dims: Dims, inter: int, prefix: str) -> None:
        """`inter`: full width, split over ranks."""
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            dims.hidden, [inter, inter], bias=False, prefix=f"{prefix}.gate_up_proj"
        )
        self.down_proj = RowParallelLinear(
            inter, dims.hidden, bias=False, prefix=f"{prefix}.down_proj"
        )
        self.act = Situ(dims, inter // self.down_proj.tp_size)

    def slots(self) -> Slots:
        """Checkpoint names below this module."""
        return {
            "gate_proj.weight": linear(self.gate_up_proj, dim=0, part=0),
            "up_proj.weight": linear(self.gate_up_proj, dim=0, part=1),
            "down_proj.weight": linear(self.down_proj, dim=1),
        }

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        hidden: Tensor = self.act(self.gate_up_proj(x)[0])
        out: Tensor = self.down_proj(hidden)[0]
        return out
