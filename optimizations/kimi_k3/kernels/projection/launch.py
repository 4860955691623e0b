"""The projection kernel as cut for a device. Read by: `kernels.compiled`, cases, the benchmark."""

from __future__ import annotations

from kimi_k3.kernels.projection.form import H200, Device, cut
from kimi_k3.kernels.projection.kernel import Projection


def projection(outputs: int, inputs: int, batch: int, device: Device = H200) -> Projection:
    """The kernel for w [outputs, inputs] and x [batch, inputs]."""
    return Projection(cut(outputs, inputs, batch, device))
