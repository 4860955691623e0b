"""A CUDA op with a scalar that changes from step to step, for plants."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from plain import Linear, Tensors


class Scaled(Linear):
    """x [B, 512] times weight [64, 512], transposed, times scale [] -> y [B, 64]."""

    device = "cuda"
    input_rows: Mapping[str, int] = {"x": 0}
    output_rows: Mapping[str, int] = {"y": 0}

    def inputs(self, regime: Mapping[str, int], seed: int) -> Tensors:
        """Those of `Linear`, and a scale."""
        return {**super().inputs(regime, seed), "scale": torch.tensor(1.0 + seed % 7)}

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """The same rows at another scale."""
        return {**inputs, "scale": inputs["scale"] + 2.0}

    def compute(self, inputs: Tensors) -> Tensors:
        """y [B, 64]."""
        return {"y": inputs["x"] @ inputs["weight"].T * inputs["scale"]}
