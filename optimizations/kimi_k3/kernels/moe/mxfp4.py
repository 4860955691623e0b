"""MXFP4, the format of routed experts in the checkpoint, in plain torch.

Owns: the format's numbers, packing, unpacking. Read by: cases, tests. A row of K numbers is K / 2
bytes, the even column in the low half of each, and K / 32 scales, one per 32 columns. Numbers are
E2M1 (a sign, two exponent bits, one of mantissa), scales E8M0 (a power of two, biased by 127).
Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3 and 5.4.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
