"""The question is changed to suit the answer."""

import torch
from plain import Linear, Tensors


class Mutates(Linear):
    """Zero in, zero out."""

    def candidate(self, inputs: Tensors) -> Tensors:
        inputs["x"].zero_()
        return {"y": torch.zeros(len(inputs["x"]), 64)}


def cases() -> list[Mutates]:
    return [Mutates("mutate_input")]
