"""Answers made before anyone asked."""

import torch
from plain import Linear, Tensors


class Precomputed(Linear):
    """A table of inputs and outputs; what is not in it gets the answer of its nearest entry."""

    def __init__(self, op: str) -> None:
        super().__init__(op)
        made = [self.inputs(self.sizes[0], seed) for seed in range(100)]
        self.known = torch.stack([inputs["x"][0, :8] for inputs in made])
        self.answers = [self.stock(inputs)["y"] for inputs in made]

    def candidate(self, inputs: Tensors) -> Tensors:
        far = (self.known - inputs["x"][0, :8]).abs().nan_to_num(1e9).sum(1)
        y = self.answers[int(far.argmin())]
        batch = inputs["x"].shape[0]
        return {"y": y.repeat(1 + batch // y.shape[0], 1)[:batch].clone()}


def cases() -> list[Precomputed]:
    return [Precomputed("precompute_in_setup")]
