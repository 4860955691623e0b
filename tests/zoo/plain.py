"""Small honest ops for kernel cases of plants: a plant changes the candidate and nothing else.

Three shapes of decode work: `Linear`, paged `Attention`, and `Experts` behind a router. Each has
seeded inputs, a float64 reference, stock arithmetic in its own dtype, and the abilities that its
shape allows. Free slots hold NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Any]


class Op:
    """What all ops share; `compute` is the arithmetic, in the dtype of its operands."""

    outputs: Mapping[str, tuple[str, ...]] = {"y": ("row", "column")}
    sizes: Sequence[Mapping[str, int]] = ({"batch": 4},)
    dtype = torch.float32
    input_rows: Mapping[str, int] = {"x": 0}
    output_rows: Mapping[str, int] = {"y": 0}

    def __init__(self, op: str) -> None:
        self.op = op

    def regimes(self) -> Sequence[Mapping[str, int]]:
        """The cells."""
        return self.sizes

    def inputs(self, regime: Mapping[str, int], seed: int) -> Tensors:
        """Seeded operands."""
        raise NotImplementedError

    def neighbours(self, regime: Mapping[str, int]) -> Sequence[Mapping[str, int]]:
        """One row more."""
        return [{**regime, "batch": regime["batch"] + 1}]

    def compute(self, inputs: Tensors) -> Tensors:
        """The honest arithmetic."""
        raise NotImplementedError

    def reference(self, inputs: Tensors) -> Tensors:
        """The same arithmetic in float64, on the same operands."""
        return self.compute({name: wide(value) for name, value in inputs.items()})

    def stock(self, inputs: Tensors) -> Tensors:
        """What runs with the switch off."""
        return {name: value.to(self.dtype) for name, value in self.compute(inputs).items()}

    def stock_variant(self, inputs: Tensors) -> Tensors:
        """Stock for the batch twice, cut back."""
        twice = {n: torch.cat((v, v)) if n in self.input_rows else v for n, v in inputs.items()}
        batch = inputs[next(iter(self.input_rows))].shape[0]
        return {name: value[:batch] for name, value in self.stock(twice).items()}

    def candidate(self, inputs: Tensors) -> Tensors:
        """What a plant replaces."""
        return self.stock(inputs)


def wide(value: Tensor) -> Tensor:
    """Floating operands in float64."""
    return value.double() if value.is_floating_point() else value


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


class Linear(Op):
    """x [B, 512] times weight [64, 512], transposed -> y [B, 64]."""

    def inputs(self, regime: Mapping[str, int], seed: int) -> Tensors:
        """Activations and a weight that stays the same for all seeds."""
        return {
            "x": normal(seed + 1, regime["batch"], 512, dtype=self.dtype),
            "weight": normal(0, 64, 512, dtype=self.dtype),
        }

    def compute(self, inputs: Tensors) -> Tensors:
        """y [B, 64]."""
        return {"y": inputs["x"] @ inputs["weight"].T}


class Attention(Op):
    """One query per row over a paged cache of one key-value head, 16 tokens a page.

    q [B, 4, 32], keys and values [pages, 16, 32], table [B, pages of a row], length [B] ->
    y [B, 4, 32]. Slots past a row's length, and pages of nobody, hold NaN.
    """

    outputs: Mapping[str, tuple[str, ...]] = {"y": ("row", "head", "column")}
    sizes = ({"batch": 3, "context": 500},)
    input_rows: Mapping[str, int] = {"q": 0, "table": 0, "length": 0}
    page = 16

    def inputs(self, regime: Mapping[str, int], seed: int) -> Tensors:
        """Rows of different lengths, the last page of each partly filled."""
        batch, context = regime["batch"], regime["context"]
        each = -(-context // self.page)
        length = torch.tensor([context - 3 * row for row in range(batch)])
        order = torch.randperm(batch * each, generator=torch.Generator().manual_seed(seed))
        table = order.reshape(batch, each) + 1
        shape = (batch * each + 1, self.page, 32)
        keys, values = normal(seed + 1, *shape), normal(seed + 2, *shape)
        made = {"q": normal(seed, batch, 4, 32), "keys": keys, "values": values,
                "table": table, "length": length}  # fmt: skip
        return self._with_free_slots(made, float("nan"))

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Numbers in place of NaN."""
        return self._with_free_slots(inputs, 3.0 + seed)

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """Every row two tokens shorter."""
        shorter = {**inputs, "length": inputs["length"] - 2}
        return self._with_free_slots(shorter, float("nan"))

    def _with_free_slots(self, inputs: Tensors, value: float) -> Tensors:
        """The same rows, with `value` wherever no row reads."""
        keys, values = inputs["keys"].clone(), inputs["values"].clone()
        free = torch.ones(keys.shape[:2], dtype=torch.bool)
        for table, length in zip(inputs["table"], inputs["length"], strict=True):
            slots = torch.arange(len(table) * self.page).reshape(len(table), self.page)
            free[table] = slots >= length
        keys[free] = values[free] = value
        return {**inputs, "keys": keys, "values": values}

    def compute(self, inputs: Tensors) -> Tensors:
        """y [B, 4, 32], row by row."""
        rows = []
        for q, table, length in zip(inputs["q"], inputs["table"], inputs["length"], strict=True):
            keys = inputs["keys"][table].flatten(0, 1)[:length]
            values = inputs["values"][table].flatten(0, 1)[:length]
            weight = torch.softmax(q @ keys.T / 32**0.5, dim=-1)
            rows.append(weight @ values)
        return {"y": torch.stack(rows)}


class Softmax(Op):
    """x [B, 256] -> its softmax, row by row."""

    sizes = ({"batch": 64},)

    def inputs(self, regime: Mapping[str, int], seed: int) -> Tensors:
        """Standard normal rows."""
        return {"x": normal(seed, regime["batch"], 256)}

    def compute(self, inputs: Tensors) -> Tensors:
        """y [B, 256]."""
        return {"y": torch.softmax(inputs["x"], dim=-1)}


class Experts(Op):
    """Each row goes to two of eight experts by its router's scores -> y [B, 64]."""

    sizes = ({"batch": 16},)

    def inputs(self, regime: Mapping[str, int], seed: int) -> Tensors:
        """x [B, 64], router [8, 64], experts [8, 64, 64]."""
        return {
            "x": normal(seed + 1, regime["batch"], 64),
            "router": normal(1, 8, 64),
            "experts": normal(2, 8, 64, 64),
        }

    def compute(self, inputs: Tensors) -> Tensors:
        """Weighted sum of both experts' outputs."""
        x, experts = inputs["x"], inputs["experts"]
        # Chosen in float32 in every precision: a different choice is no rounding error.
        scores = x.float() @ inputs["router"].float().T
        top, chosen = scores.topk(2, dim=-1)
        weight = torch.softmax(top, dim=-1).to(x.dtype)
        each = torch.einsum("bk,bjkn->bjn", x, experts[chosen])
        return {"y": (weight[..., None] * each).sum(1)}
