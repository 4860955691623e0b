"""How the heads of a KDA layer are cut for a GPU.

Owns: what a kernel is made for, blocks per head and warps per block by batch and local heads. Does
not own: device code. Read by: `kda.kernel`, `kda.launch`; pure arithmetic, tested without a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

WIDTH = 128
"""Keys and values of a head, and the rank of the decay gate."""
TAPS = 4
RESIDENT = 2
"""Blocks of a multiprocessor that the compiler leaves registers for. Told nothing it takes fewer
than it may (batch 1: 3.6 instead of 3.2 us); told 1, so many that one must do (42 for 33 at 64)."""


class Heads(NamedTuple):
    """What code is made for."""

    heads: int
    """Of this rank."""
    batch: int
    tokens: int
    """Per request: 1 for plain decode, more for a verification."""
    pitch: int
    """Numbers from row to row of the projection."""
    slots: int
    """Of the two state pools."""
    lower_bound: float
    """Most negative log decay per step."""
    parts: int
    """Blocks per head, a cluster: each has 128 / parts rows of the state."""
    warps: int
    conv_pitch: int = 0
    """Numbers from one slot's history to the next; 0: they follow each other. An engine keeps
    states in pages that hold more."""
    state_pitch: int = 0
    """The same of recurrent states."""

    @property
    def rows(self) -> int:
        """State rows of one block."""
        return WIDTH // self.parts

    @property
    def warp_rows(self) -> int:
        """State rows of one warp."""
        return self.rows // self.warps

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block: arrays of a head, sums, barriers, decay weights."""
        floats = 3 * WIDTH + self.rows + 4 * 4 + 2 * self.parts * self.warps
        return 4 * floats + 8 * 3 + 128 + 2 * WIDTH * WIDTH


ROW_MULTIPLE = 16
"""Rows of the packed input projection are padded to it: whole tiles, and rows of whole 16 bytes."""


def pitch(heads: int) -> int:
    """Numbers per row of the packed input projection of `heads` heads: see `kda.prepared`."""
    return -(-(4 * heads * 128 + 128 + heads) // ROW_MULTIPLE) * ROW_MULTIPLE


BLOCKS = 264
"""Two per multiprocessor of the device measured on: what registers and shared memory allow."""


def cut(heads: int, batch: int) -> tuple[int, int]:
    """Blocks per head, and warps per block: a block for every place, but no more.

    Measured on an H200 with 12 heads: fewer, larger blocks from the first batch on that fills it.
    """
    for parts, warps in ((8, 4), (4, 4), (2, 8)):
        if heads * batch * parts <= BLOCKS:
            return parts, warps
    return 1, 8
