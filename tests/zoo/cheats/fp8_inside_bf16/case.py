"""bfloat16 outside, FP8 inside."""

import torch
from plain import Linear, Tensors


class Downgraded(Linear):
    """Three bits of mantissa where seven are declared."""

    dtype = torch.bfloat16

    def candidate(self, inputs: Tensors) -> Tensors:
        lower = {n: v.to(torch.float8_e4m3fn).to(self.dtype) for n, v in inputs.items()}
        return self.stock(lower)


def cases() -> list[Downgraded]:
    return [Downgraded("fp8_inside_bf16")]
