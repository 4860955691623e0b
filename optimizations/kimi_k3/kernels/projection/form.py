"""How a packed linear map is cut for a GPU.

Owns: what a kernel is made for, rows per block and stages by shape, batch and device. Does not own:
device code. Read by: `projection.kernel`, `projection.launch`; arithmetic, tested without a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

BOX = 64
"""Columns of one TMA box: 128 bytes, the width of the swizzle."""
STEP = 16
"""Columns of one matrix instruction."""


class Map(NamedTuple):
    """What code is made for: shape [outputs, inputs], batch, and how the work is cut."""

    outputs: int
    inputs: int
    batch: int
    rows: int
    """Weight rows of one block."""
    boxes: int
    """Boxes of one stage; two consumer warps share each."""
    stages: int

    @property
    def warps(self) -> int:
        """Consumer warps."""
        return 2 * self.boxes

    @property
    def tiles(self) -> int:
        """Matrix instructions that cover the rows: 16 each."""
        return -(-self.rows // 16)

    @property
    def split_batch(self) -> bool:
        """Whether the two warps of a box take half the batch each, or half the columns."""
        return self.batch > 8

    @property
    def partials(self) -> int:
        """Sums to add up for one output."""
        return self.boxes if self.split_batch else self.warps

    @property
    def pitch(self) -> int:
        """Floats between batch rows of a partial sum: 4 more than rows, so that the 8 x 4 places a
        warp stores to at once lie in different banks."""
        return 16 * self.tiles + 4

    @property
    def held_rows(self) -> int:
        """Rows of a box in shared memory. TMA writes eight at a time; the last matrix instruction
        may read into the next box, for outputs that nobody stores."""
        return -(-self.rows // 8) * 8

    @property
    def held_batch(self) -> int:
        """Batch rows of a box in shared memory: matrix instructions of each warp take 8."""
        each = 16 if self.split_batch else 8
        return -(-self.batch // each) * each

    @property
    def chunks(self) -> int:
        """Stages that pass through one block."""
        return self.inputs // (self.boxes * BOX)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage."""
        return (self.held_rows + self.held_batch) * self.boxes * BOX * 2

    @property
    def ring(self) -> int:
        """Stages held at once: no more than there are."""
        return min(self.stages, self.chunks)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block; the partial sums at the end lie where the stages were."""
        partial = self.partials * self.pitch * self.held_batch * 4
        return max(self.ring * self.stage_bytes, partial) + 2048

    @property
    def blocks(self) -> int:
        """Thread blocks."""
        return -(-self.outputs // self.rows)


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


def cut(outputs: int, inputs: int, batch: int, device: Device, multiple: int = 1) -> Map:
    """One block per multiprocessor, every block equally many rows, as many stages as fit. Rows of
    a block come in multiples of `multiple`, at the price of some multiprocessors.

    Raises ValueError beyond `MAX_BATCH`, and where not two stages fit.
    """
    if not 1 <= batch <= MAX_BATCH:
        raise ValueError(f"batch {batch} is not within 1 to {MAX_BATCH}")
    rows = -(-outputs // (device.multiprocessors * multiple)) * multiple
    form = Map(outputs, inputs, batch, rows, BOXES, stages=inputs // (BOXES * BOX))
    while form.shared_bytes > device.shared_bytes - NEIGHBOUR and form.stages > 2:
        form = form._replace(stages=form.stages - 1)
    if form.shared_bytes > device.shared_bytes:
        raise ValueError(f"{outputs}x{inputs} at batch {batch} needs {form.shared_bytes} bytes")
    return form
