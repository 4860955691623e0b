"""A sum over blocks without atomics. Needs triton."""

from typing import Any

import torch
from plain import Linear, Tensors

COLUMNS, DEPTH, BLOCK = 64, 512, 32


def kernel() -> Any:
    """Compiled on first use: the zoo is read where there is no triton."""
    import triton
    import triton.language as tl

    @triton.jit
    def add_part(x, weight, y, depth: tl.constexpr, columns: tl.constexpr, block: tl.constexpr):
        row, part = tl.program_id(0), tl.program_id(1)
        k = part * block + tl.arange(0, block)
        n = tl.arange(0, columns)
        a = tl.load(x + row * depth + k)
        b = tl.load(weight + n[:, None] * depth + k[None, :])
        place = y + row * columns + n
        # Read, add, write: another block may have written in between.
        tl.store(place, tl.load(place) + tl.sum(a[None, :] * b, axis=1))

    return add_part


class Races(Linear):
    """Right if the blocks happen to run one after the other."""

    device = "cuda"
    made: Any = None

    def candidate(self, inputs: Tensors) -> Tensors:
        x, weight = inputs["x"], inputs["weight"]
        y = torch.zeros(len(x), COLUMNS, device="cuda")
        self.made = self.made or kernel()
        self.made[(len(x), DEPTH // BLOCK)](x, weight, y, DEPTH, COLUMNS, BLOCK)
        return {"y": y}


def cases() -> list[Races]:
    return [Races("missing_sync")]
