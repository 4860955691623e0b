"""How a packed linear map is cut for a device.

Owns: rows per block, stages by shape, batch and device; what each cut was measured on.
Does not own: device code. Read by: `kernels.compiled`, cases, the benchmark.
"""

from __future__ import annotations

from typing import NamedTuple

from kimi_k3.kernels.projection.kernel import BOX, Map, Projection


class Device(NamedTuple):
    """What a cut depends on."""

    multiprocessors: int
    shared_bytes: int
    """Per block."""


H200 = Device(132, 227 * 1024)
B200 = Device(148, 227 * 1024)
B300 = Device(148, 227 * 1024)
DEVICES = {"sm_90a": H200, "sm_100a": B200, "sm_103a": B300}
"""Architecture to the data centre part it was planned for; only H200 was measured."""
BOXES = 4
NEIGHBOUR = 38 * 1024
"""Shared memory left free: a block of the kernel ahead or behind, the largest of which is KDA's,
fits beside the projection's."""
MAX_BATCH = 64


def cut(outputs: int, inputs: int, batch: int, device: Device) -> Map:
    """One block per multiprocessor, every block equally many rows, as many stages as fit.

    Raises ValueError beyond `MAX_BATCH`, and where not two stages fit.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise ValueError(f"batch {batch} is not within 1 to {MAX_BATCH}")
    rows = -(-outputs // device.multiprocessors)
    form = Map(outputs, inputs, batch, rows, BOXES, stages=inputs // (BOXES * BOX))
    while form.shared_bytes > device.shared_bytes - NEIGHBOUR and form.stages > 2:
        form = form._replace(stages=form.stages - 1)
    if form.shared_bytes > device.shared_bytes:
        raise ValueError(f"{outputs}x{inputs} at batch {batch} needs {form.shared_bytes} bytes")
    return form


def projection(outputs: int, inputs: int, batch: int, device: Device = H200) -> Projection:
    """The kernel for w [outputs, inputs] and x [batch, inputs]."""
    return Projection(cut(outputs, inputs, batch, device))
