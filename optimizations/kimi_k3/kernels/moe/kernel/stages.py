"""Weights on their way through a block of the routed experts.

Owns: what TMA takes them with, the ring of stages and the order in which it is filled. Does not
own: who multiplies, and when a stage is left. Read by: `moe.kernel.experts`; needs CuTe DSL and
nothing else.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.moe.form import DOWN_ROWS, FOLD, GROUP, LINE, PARTS, Routed

NUMBERS = LINE // 2
"""BF16 numbers as which TMA takes a line of 256 weights."""


class Stages:
    """The ring of one form."""

    def __init__(self, form: Routed) -> None:
        self.form = form

    def boxes(self, w: Any, rows: int, numbers: int, box: int) -> tuple[Any, Any]:
        """What TMA takes weights with: [rows, numbers], pairs of bytes as BF16, in boxes of `box`
        rows and one line."""
        bytes_ = cute.recast_ptr(w.iterator, dtype=BFloat16)
        whole = cute.make_tensor(bytes_, cute.make_layout((rows, numbers), stride=(numbers, 1)))
        layout = cute.make_composed_layout(
            cute.make_swizzle(3, 4, 3), 0, cute.make_layout((box, NUMBERS), stride=(NUMBERS, 1))
        )
        load = cpasync.CopyBulkTensorTileG2SOp()
        made: tuple[Any, Any] = cpasync.make_tiled_tma_atom(load, whole, layout, (box, NUMBERS))
        return made

    @cute.jit
    def feed(self, sources: Any, places: Any, barriers: Any, work: Any) -> None:
        """The producing warp: one thread fills stage after stage, in the order of use."""
        form = cutlass.const_expr(self.form)
        up_atom, up, down_atom, down, s13, s2 = sources
        ring, scales = places
        full, empty, scaled = barriers
        table, count, part = work
        up_shared, up_global = self._parts(up_atom, up, ring, form.hidden, 2)
        down_shared, down_global = self._parts(down_atom, down, ring, DOWN_ROWS // FOLD, form.lines)
        up_scales = cutlass.const_expr(form.latent // GROUP)
        down_scales = cutlass.const_expr(form.inter // GROUP)
        with cute.arch.elect_one():
            for turn in cutlass.range(count + 1, unroll=1):
                if turn < count:
                    expert = table[2 * turn]
                    cute.arch.mbarrier_wait(scaled + 1, (turn + 1) % 2)
                    cute.arch.mbarrier_arrive_and_expect_tx(scaled, form.scales)
                    for half in cutlass.range_constexpr(2):
                        row = expert * (2 * form.inter) + half * form.inter + part * form.hidden
                        size = cutlass.const_expr(form.hidden * up_scales)
                        at = s13.iterator.toint() + Int64(row) * up_scales
                        prim.fetch(scales + half * size, at, size, scaled)
                    for chunk in cutlass.range(form.up_chunks, unroll=1):
                        slot = self._free(full, empty, self.first_up(turn) + chunk,
                                          form.weight_bytes)  # fmt: skip
                        for half in cutlass.range_constexpr(2):
                            row = (2 * expert + half) * PARTS + part
                            cute.copy(
                                up_atom,
                                up_global[None, row, chunk],
                                up_shared[None, half, slot],
                                tma_bar_ptr=full + slot,
                                cache_policy=Int64(prim.EVICT_FIRST),
                            )
                if turn > 0:
                    expert = table[2 * turn - 2]
                    for chunk in cutlass.range(form.down_chunks, unroll=1):
                        size = cutlass.const_expr(form.weight_bytes + form.down_scales)
                        first = self.first_down(turn - 1, count)
                        slot = self._free(full, empty, first + chunk, size)
                        row = (expert * PARTS + part) * form.down_chunks + chunk
                        for line in cutlass.range_constexpr(form.lines):
                            cute.copy(
                                down_atom,
                                down_global[None, row, line],
                                down_shared[None, line, slot],
                                tma_bar_ptr=full + slot,
                                cache_policy=Int64(prim.EVICT_FIRST),
                            )
                        at = s2.iterator.toint() + Int64(row) * (DOWN_ROWS * down_scales)
                        behind = ring + (slot * form.stage_bytes + form.weight_bytes)
                        prim.fetch(behind, at, form.down_scales, full + slot)

    @cute.jit
    def _free(self, full: Any, empty: Any, number: Int32, size: Any) -> Int32:
        """Place of stage `number`, once it is free; it waits for `size` bytes from now on."""
        slot = number % self.form.stages
        cute.arch.mbarrier_wait(empty + slot, (number // self.form.stages + 1) % 2)
        cute.arch.mbarrier_arrive_and_expect_tx(full + slot, size)
        return slot

    def first_up(self, turn: Int32) -> Int32:
        """Number of the first stage of a unit's w13: behind it, each unit's w13 and all w2 but of
        the unit before."""
        form = self.form
        return turn * form.up_chunks + cutlass.max(turn - 1, Int32(0)) * form.down_chunks

    def first_down(self, unit: Int32, count: Int32) -> Int32:
        """Number of the first stage of a unit's w2: the next unit's w13 is ahead of it."""
        form = self.form
        return cutlass.min(unit + 2, count) * form.up_chunks + unit * form.down_chunks

    def _parts(self, atom: Any, whole: Any, ring: Any, rows: int, boxes: int) -> tuple[Any, Any]:
        """Boxes of the ring and of memory, as TMA takes them."""
        form = self.form
        layout = cute.make_layout(
            (rows, NUMBERS, boxes, form.stages),
            stride=(NUMBERS, 1, rows * NUMBERS, form.stage_bytes // 2),
        )
        swizzled = cute.recast_ptr(ring, cute.make_swizzle(3, 4, 3), dtype=BFloat16)
        tiles = cute.local_tile(whole, (rows, NUMBERS), (None, None))
        made: tuple[Any, Any] = cpasync.tma_partition(
            atom, 0, cute.make_layout(1),
            cute.group_modes(cute.make_tensor(swizzled, layout), 0, 2),
            cute.group_modes(tiles, 0, 2),
        )  # fmt: skip
        return made

    @cute.jit
    def taken(self, full: Any, number: Int32) -> Int32:
        """Place of stage `number`, once it is full."""
        slot = number % self.form.stages
        cute.arch.mbarrier_wait(full + slot, (number // self.form.stages) % 2)
        return slot
