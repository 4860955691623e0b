"""MXFP4, the format of routed experts in the checkpoint, in plain torch.

Owns: the format's numbers, packing, unpacking. Read by: cases, tests. A row of K numbers is K / 2
bytes, the even column in the low half of each, and K / 32 scales, one per 32 columns. Numbers are
E2M1 (a sign, two exponent bits, one of mantissa), scales E8M0 (a power of two, biased by 127).
Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3 and 5.4.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.kernels.moe.form import PIECE

GROUP = 32
BIAS = 127
SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes by their three bits; the fourth is the sign."""


def dequantised(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """packed uint8 [..., K/2], scales uint8 [..., K/32] -> [..., K], exact in any dtype that holds
    the scales. A scale of 255 stands for NaN."""
    table = torch.tensor([*SIZES, *(-size for size in SIZES)], dtype=dtype, device=packed.device)
    bits = packed.int()
    numbers = torch.stack((table[bits & 15], table[bits >> 4]), dim=-1).flatten(-2)
    powers = torch.exp2(scales.to(torch.float64) - BIAS)
    powers = torch.where(scales == 255, torch.nan, powers).to(dtype)
    return (numbers.unflatten(-1, (-1, GROUP)) * powers[..., None]).flatten(-2)


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., K] -> packed and scales, each number to the nearest, ties to the even code.

    Scales are the specification's: the largest power of two not above a group's largest magnitude,
    over 4, the largest power of two of a number. What lies beyond 6 scales becomes 6.
    """
    groups = weight.double().unflatten(-1, (-1, GROUP))
    top = groups.abs().amax(-1)
    exponents = torch.where(top > 0, torch.frexp(top).exponent - 1 - 2, -BIAS).clamp(-BIAS, BIAS)
    shrunk = torch.ldexp(groups, -exponents[..., None])
    sizes = torch.tensor(SIZES, dtype=torch.float64, device=weight.device)
    # Twice over, for ties: what lies halfway counts for the even one of its neighbours.
    halves = (sizes[1:] + sizes[:-1]) / 2
    below = torch.bucketize(shrunk.abs(), halves)
    above = torch.bucketize(shrunk.abs(), halves, right=True)
    codes = torch.where(below % 2 == 0, below, above)
    codes = (codes | (shrunk < 0).long() << 3).flatten(-2).to(torch.uint8)
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    return packed, (exponents + BIAS).to(torch.uint8)


def repacked(packed: Tensor) -> Tensor:
    """packed uint8 [E, N, K/2] -> uint8 [E, K/16, N/64, 512], as humming 0.1 keeps MXFP4 weights
    for BF16 activations on compute capability 9.0, vLLM's back end there.

    512 bytes are 64 rows of 16 columns, 16 bytes for each lane of a warp, a word of them for each
    16 rows: the lane's left operands of `mma.m16n8k16`. Nibble p of word i of lane l is column
    16 k + 2 (l % 4) + 8 (p % 2) + p // 4 of row 64 n + 16 i + 8 (p // 2 % 2) + l // 4.
    """
    experts, rows, half = packed.shape
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    # E, n, i, row's half, l // 4, k, column's half, l % 4, column's parity
    split = codes.view(experts, rows // PIECE, 4, 2, 8, half // 8, 2, 4, 2)
    # E, k, n, l // 4, l % 4, i, parity, row's half, column's half: nibbles, the lowest last
    nibbles = split.permute(0, 5, 1, 4, 7, 2, 8, 3, 6).flatten(-4)
    return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).flatten(-3).contiguous()


def repacked_scales(scales: Tensor) -> Tensor:
    """scales uint8 [E, N, K/32] -> uint8 [E, K/32, N]: of 64 rows, row 8 m + g is byte 8 g + m."""
    experts, rows, groups = scales.shape
    split = scales.view(experts, rows // PIECE, 8, 8, groups)
    return split.permute(0, 4, 1, 3, 2).flatten(2).contiguous()
