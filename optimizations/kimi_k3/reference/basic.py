"""The few formulas every K3 module shares: linear map, RMS norm, SiTU, SiTU MLP.

Owns: formulas only. Read by: the other reference modules and by anyone who needs an oracle.
Every function works in the dtype of its input. Source: Kimi K3 technical report, section 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.reference.weights import Weights


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., in], weight [out, in] -> [..., out]. K3 has no biases in linear maps."""
    return x @ weight.t()


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * gain over the last axis; shape kept."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """SiTU: [beta tanh(gate / beta) sigmoid(gate)] [linear_beta tanh(up / linear_beta)].

    Equal shapes in and out; magnitude below beta * linear_beta (100 in K3).
    """
    bounded_gate = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
    return bounded_gate * (linear_beta * torch.tanh(up / linear_beta))


def mlp(weights: Weights, dims: Dims, x: Tensor) -> Tensor:
    """SiTU MLP, x [..., hidden] -> [..., hidden]: dense layer 0 and the fused shared experts."""
    gate = linear(x, weights["gate_proj.weight"])
    up = linear(x, weights["up_proj.weight"])
    inner = situ(gate, up, dims.situ_beta, dims.situ_linear_beta)
    return linear(inner, weights["down_proj.weight"])
