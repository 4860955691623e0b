"""How the heads of a KDA layer are cut for a device.

Owns: blocks per head and warps per block by batch and local heads. Does not own: device code. Read
by: `kernels.compiled`, cases, the benchmark.
"""

from __future__ import annotations

from kimi_k3.kernels.kda.kernel import Heads, Kda

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


def kda(heads: int, batch: int, tokens: int, slots: int, lower_bound: float) -> Kda:
    """The kernel for `batch` requests of `tokens` tokens."""
    return Kda(Heads(heads, batch, tokens, pitch(heads), slots, lower_bound, *cut(heads, batch)))
