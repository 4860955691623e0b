"""A sum kept in half precision."""

import torch
from plain import Linear, Tensors


class HalfSum(Linear):
    """float32 in and out, float16 in between."""

    def candidate(self, inputs: Tensors) -> Tensors:
        total = torch.zeros(len(inputs["x"]), 64, dtype=torch.float16)
        for x, weight in zip(inputs["x"].split(32, 1), inputs["weight"].split(32, 1), strict=True):
            total += (x @ weight.T).half()
        return {"y": total.float()}


def cases() -> list[HalfSum]:
    return [HalfSum("fp16_accumulator")]
