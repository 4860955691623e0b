"""Trainable weights: the checkpoint's tensors, with the experts of a layer stacked.

Owns: initial values for training and the way from and to checkpoint names. Does not own: names and
shapes (`reference.weights`). Stacked, a layer's experts are three tensors [experts, out, in] called
`...experts.w1.weight` and so on, which is what a batched forward and optimiser want.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.reference.weights import LM_HEAD, shapes

_EXPERT = re.compile(r"^(.*\.experts)\.(\d+)\.(w[123]\.weight)$")

KEPT_FP32 = ("A_log", "dt_bias", "conv1d.weight", "e_score_correction_bias")
"""Ends of the names that K3 stores in FP32; everything else ships as BF16."""

BIAS = "e_score_correction_bias"
"""Not trained by gradients: moved to balance the experts."""


def stack(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Checkpoint names to stacked names."""
    grouped: dict[str, list[Tensor]] = {}
    for name, tensor in weights.items():
        found = _EXPERT.match(name)
        key = f"{found[1]}.{found[3]}" if found else name
        grouped.setdefault(key, []).append(tensor)
    return {
        name: torch.stack(parts) if ".experts." in name else parts[0]
        for name, parts in grouped.items()
    }


def unstack(weights: Mapping[str, Tensor], dims: Dims) -> dict[str, Tensor]:
    """Stacked names to checkpoint names, in file order."""
    found: dict[str, Tensor] = {}
    for name in shapes(dims):
        expert = _EXPERT.match(name)
        found[name] = (
            weights[f"{expert[1]}.{expert[3]}"][int(expert[2])] if expert else weights[name]
        )
    return found


def shipped(weights: Mapping[str, Tensor], dims: Dims) -> dict[str, Tensor]:
    """What is written: checkpoint names, BF16 but for `KEPT_FP32`, on the CPU."""
    return {
        name: tensor.detach()
        .to("cpu", torch.float32 if name.endswith(KEPT_FP32) else torch.bfloat16)
        .contiguous()
        .clone()
        for name, tensor in unstack(weights, dims).items()
    }


def initial(dims: Dims, seed: int) -> dict[str, Tensor]:
    """FP32 weights to start training from, stacked, on the CPU.

    Residual sites begin as even mixtures, experts without bias, and decay channels with half-lives
    from a token to thousands of tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    return stack({name: _tensor(name, s, generator) for name, s in shapes(dims).items()})


def _tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith(("res_proj.weight", BIAS)):
        return torch.zeros(shape)
    if name.endswith(".A_log"):
        return torch.full(shape, math.log(2.0))
    if name.endswith(".dt_bias"):
        # Log decay -5 sigmoid(2 dt_bias), from -1.3 to -0.0006 a token.
        return torch.rand(shape, generator=generator) * -4.0 - 0.5
    if len(shape) == 1:
        return torch.ones(shape)
    return torch.randn(shape, generator=generator) * _deviation(name, shape)


def _deviation(name: str, shape: tuple[int, ...]) -> float:
    if name.endswith("embed_tokens.weight"):
        return 0.5
    if name.endswith("conv1d.weight"):
        return 0.5
    if name == LM_HEAD:
        return 0.2 / math.sqrt(shape[-1])
    # Small where a module writes to the stream, smaller where a change of experts would move all
    # that follows, and where a decay leaves its channel's own rate.
    small = ("o_proj.weight", ".down_proj.weight", "w2.weight", "f_b_proj.weight")
    scale = 0.3 if name.endswith(small) else 0.1 if name.endswith("expert_up_proj.weight") else 1.0
    return scale / math.sqrt(shape[-1])
