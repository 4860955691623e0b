"""Three calls of four do nothing."""

import torch
from plain import Linear, Tensors


class Skips(Linear):
    """Works only now and then."""

    calls = 0
    last = torch.zeros(0, 0)

    def candidate(self, inputs: Tensors) -> Tensors:
        if self.calls % 4 == 0 or len(self.last) != len(inputs["x"]):
            self.last = self.stock(inputs)["y"]
        self.calls += 1
        return {"y": self.last.view_as(self.last)}


def cases() -> list[Skips]:
    return [Skips("batch_and_skip")]
