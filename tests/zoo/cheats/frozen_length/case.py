"""A launch that was captured once."""

from collections.abc import Mapping

import torch
from plain import Attention, Tensors


class Frozen(Attention):
    """Lengths are those of the first call of this batch; all rows are equally long."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        self.first: dict[int, torch.Tensor] = {}

    def inputs(self, regime: Mapping[str, int], seed: int) -> Tensors:
        made = super().inputs(regime, seed)
        equal = torch.full_like(made["length"], regime["context"] - 9)
        return self._with_free_slots({**made, "length": equal}, float("nan"))

    def candidate(self, inputs: Tensors) -> Tensors:
        length = self.first.setdefault(len(inputs["q"]), inputs["length"].clone())
        return self.stock({**inputs, "length": length})


def cases() -> list[Frozen]:
    return [Frozen("frozen_length")]
