"""Case `projection`: packed linear maps of few rows on a GPU.

Owns: inputs, truth, stock arithmetic and candidate. Read by: the harness.
"""

from __future__ import annotations

import torch

from kimi_k3.cases.gpu import common
from kimi_k3.cases.gpu.common import BATCHES, GpuCase, Regime, Tensors

SHAPES = ((6288, 7168), (3648, 7168), (2304, 1536), (7168, 1536))
"""Outputs and inputs of a rank's maps: into KDA, into MLA, MLA queries, out of either."""


class ProjectionCase(GpuCase):
    """x [B, K] times w [N, K], transposed."""

    op = "projection"
    outputs = {"y": ("row", "column")}  # noqa: RUF012 - part of the protocol, never changed
    input_rows = {"x": 0}  # noqa: RUF012
    output_rows = {"y": 0}  # noqa: RUF012
    planting = {  # noqa: RUF012
        "last_inputs_lost": lambda i: i | {"x": _without_last(i["x"])},
        "weights_rounded_to_fp8": lambda i: (
            i | {"w": i["w"].to(torch.float8_e4m3fn).to(i["w"].dtype)}
        ),
    }

    def every(self) -> list[Regime]:
        """Every batch for every map."""
        return [
            {"batch": batch, "outputs": outputs, "inputs": inputs}
            for outputs, inputs in SHAPES
            for batch in BATCHES
        ]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Weights of a size that keeps outputs near one."""
        random = common.generator(seed, regime)
        outputs, inputs = regime["outputs"], regime["inputs"]
        return {
            "x": common.normal(random, regime["batch"], inputs),
            "w": common.normal(random, outputs, inputs, scale=inputs**-0.5),
        }

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """FP64, or the engine's own BF16 product."""
        if dtype == torch.float64:
            return {"y": inputs["x"].double() @ inputs["w"].double().t()}
        return {"y": torch.nn.functional.linear(inputs["x"], inputs["w"])}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The kernel as it is cut for the device measured on."""
        y = inputs["x"].new_empty(inputs["x"].shape[0], inputs["w"].shape[0])
        self.candidate_into(inputs, {"y": y})
        return {"y": y}

    def candidate_into(self, inputs: Tensors, out: Tensors) -> None:
        """Into the caller's buffer."""
        from kimi_k3.kernels.projection.launch import projection

        (outputs, width), batch = inputs["w"].shape, inputs["x"].shape[0]
        kernel = projection(outputs, width, batch)
        common.launched(kernel, {name: inputs[name] for name in ("x", "w")} | {"y": out["y"]})

    def work(self, regime: Regime) -> dict[str, float]:
        """Weights once."""
        elements = regime["outputs"] * regime["inputs"]
        return {"bytes": 2.0 * elements, "flops": 2.0 * elements * regime["batch"]}


def _without_last(x: torch.Tensor) -> torch.Tensor:
    """`x` with the last one per cent of its inputs zero."""
    changed = x.clone()
    changed[:, -(x.shape[1] // 100) :] = 0
    return changed
