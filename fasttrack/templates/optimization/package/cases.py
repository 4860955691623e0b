"""Kernel cases: how the harness meets every changed op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from @PACKAGE@ import ops


class ScaleAdd:
    """One op: shapes, inputs, fp64 reference, stock, candidate.

    From `input_rows` on everything is an ability: leave out what your op does not have. A check
    without its ability is reported as not offered.
    """

    op = "scale_add"
    outputs: Mapping[str, tuple[str, ...]] = {"y": ("row", "column")}
    input_rows: Mapping[str, int] = {"x": 0, "residual": 0}
    output_rows: Mapping[str, int] = {"y": 0}

    def regimes(self) -> Sequence[Mapping[str, int]]:
        """Every batch size near a boundary you handle specially, and both its neighbours."""
        return [{"batch": batch} for batch in (1, 2, 3, 7, 8, 9)]

    def inputs(self, regime: Mapping[str, int], seed: int) -> dict[str, Any]:
        """Seeded; the same seed gives the same bits."""
        generator = torch.Generator().manual_seed(seed)
        batch, width = regime["batch"], 256

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        return {
            "x": normal(batch, width),
            "weight": normal(width),
            "residual": normal(batch, width),
        }

    def reference(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """float64, written apart from the ops."""
        x, weight, residual = (inputs[k].double() for k in ("x", "weight", "residual"))
        return {"y": x * weight + residual}

    def stock(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the engine runs with the switch off."""
        return {"y": ops.stock(**inputs)}

    def stock_variant(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Stock for the same rows in another batch composition: the batch twice, cut back."""
        batch = inputs["x"].shape[0]
        twice = {
            name: torch.cat((value, value)) if value.dim() == 2 else value
            for name, value in inputs.items()
        }
        return {"y": ops.stock(**twice)[:batch]}

    def candidate(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The very code the specialised path runs."""
        return {"y": ops.candidate(**inputs)}

    def neighbours(self, regime: Mapping[str, int]) -> Sequence[Mapping[str, int]]:
        """Shapes that run between calls of a cell, on either side of its edges."""
        batch = regime["batch"]
        return [{"batch": other} for other in (batch - 1, batch + 1) if other]

    def faults(self, regime: Mapping[str, int]) -> Sequence[str]:
        """Wrong results that only this case knows how to make; each must be rejected."""
        return ["residual_of_another_row"] if regime["batch"] > 1 else []

    def planted(self, fault: str, inputs: dict[str, Any]) -> dict[str, Any]:
        """Stock with the fault in it."""
        return self.stock(inputs | {"residual": inputs["residual"].roll(1, 0)})

    def work(self, regime: Mapping[str, int]) -> Mapping[str, float]:
        """The least a call must move and compute: a faster one is not believed."""
        elements = regime["batch"] * 256
        return {"bytes": 4.0 * (3 * elements + 256), "flops": 2.0 * elements}


def cases() -> list[ScaleAdd]:
    """Found through the entry point `fasttrack.cases`."""
    return [ScaleAdd()]
