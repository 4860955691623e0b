"""Partial sums in no fixed order."""

import random

import torch
from plain import Linear, Tensors


class Atomics(Linear):
    """Right to within rounding, never to the bit; stock of such an op is the same."""

    nondeterministic = True

    def stock(self, inputs: Tensors) -> Tensors:
        parts = [
            x @ weight.T
            for x, weight in zip(
                inputs["x"].split(64, 1), inputs["weight"].split(64, 1), strict=True
            )
        ]
        random.shuffle(parts)
        total = torch.zeros_like(parts[0])
        for part in parts:
            total += part
        return {"y": total}

    def candidate(self, inputs: Tensors) -> Tensors:
        return self.stock(inputs)


def cases() -> list[Atomics]:
    return [Atomics("atomics")]
