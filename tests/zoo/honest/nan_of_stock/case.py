"""A row without a single key."""

from collections.abc import Mapping

import torch
from plain import Softmax, Tensors


class Masked(Softmax):
    """The last row is masked as a whole: its softmax is not a number."""

    def inputs(self, regime: Mapping[str, int], seed: int) -> Tensors:
        made = super().inputs(regime, seed)
        made["x"][-1] = float("-inf")
        return made

    def candidate(self, inputs: Tensors) -> Tensors:
        x = inputs["x"]
        weight = (x - x.amax(-1, keepdim=True)).exp()
        return {"y": weight / weight.sum(-1, keepdim=True, dtype=torch.float32)}


def cases() -> list[Masked]:
    return [Masked("nan_of_stock")]
