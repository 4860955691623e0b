"""A launch that was captured once."""

import torch
from plain import Attention, Tensors


class FrozenRows(Attention):
    """Lengths are those of the first call of this batch."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.first: dict[int, torch.Tensor] = {}

    def candidate(self, inputs: Tensors) -> Tensors:
        length = self.first.setdefault(len(inputs["q"]), inputs["length"].clone())
        return self.stock({**inputs, "length": length})


def cases() -> list[FrozenRows]:
    return [FrozenRows("frozen_rows")]
