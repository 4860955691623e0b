"""Packed linear maps for few rows on a GPU: weights streamed once, as fast as memory gives them.

Owns: device code. Does not own: what is packed together (`prepared`), how a map is cut (`form`).
Read by: `projection.launch`, `kernels.compiled`; needs CuTe DSL and nothing else.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.projection.form import BOX, STEP, Map


class Projection:
    """x [B, K] and w [N, K] BF16 -> y [B, N] BF16.

    A block owns `rows` rows of w for all of the batch. One thread feeds a ring of stages by TMA,
    the weights of its first turn before the grid-dependency wait. Two warps per box of 64 columns
    multiply with m16n8k16, weights as the 16 rows, batch as the 8 columns. Their partial sums meet
    in shared memory, in the order of the boxes: the same bits every time. FP32 accumulation, one
    rounding at the store.
    """

    form: tuple[Any, ...]
    fresh = False
    """Whether every stage's sum begins at zero and is added to those before."""

    def __init__(self, form: Map) -> None:
        if form.inputs % (form.boxes * BOX):
            raise ValueError(f"{form.inputs} inputs are not whole stages of {form.boxes * BOX}")
        self.form = form
        self.map = form

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.map
        return {
            "x": Argument("bfloat16", (form.batch, form.inputs)),
            "w": Argument("bfloat16", (form.outputs, form.inputs), "static"),
            "y": Argument("bfloat16", (form.batch, form.outputs)),
        }

    @cute.jit
    def __call__(self, x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, stream: Stream) -> None:
        """Launch as a dependent of the kernel ahead."""
        self._launch(x, w, y, stream)

    @cute.jit
    def _launch(self, x: cute.Tensor, w: cute.Tensor, out: Any, stream: Stream) -> None:
        """The launch, whatever sums go to: `out` is what `_store` is told."""
        (w_atom, w_tiles), (x_atom, x_tiles) = self._boxes(w, x)
        self.kernel(w_atom, w_tiles, x_atom, x_tiles, out).launch(
            grid=(self.map.blocks, 1, 1),
            block=((self.map.warps + 1) * prim.WARP, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self,
        w_atom: cute.CopyAtom,
        w: cute.Tensor,
        x_atom: cute.CopyAtom,
        x: cute.Tensor,
        out: Any,
    ) -> None:
        self._run(w_atom, w, x_atom, x, out)

    def _boxes(self, w: cute.Tensor, x: cute.Tensor) -> list[tuple[cute.CopyAtom, cute.Tensor]]:
        """What TMA takes weights and activations with, box by box."""
        form = self.map
        # An extent known to be 1 would lose its place among the coordinates of the descriptor.
        rows_ = cute.make_layout((Int32(form.batch), form.inputs), stride=(form.inputs, 1))
        x = cute.make_tensor(x.iterator, rows_)
        swizzle = cute.make_swizzle(3, 4, 3)
        load = cpasync.CopyBulkTensorTileG2SOp()
        boxes = []
        for tensor, rows in ((w, form.rows), (x, form.held_batch)):
            layout = cute.make_composed_layout(
                swizzle, 0, cute.make_layout((rows, BOX), stride=(BOX, 1))
            )
            boxes.append(cpasync.make_tiled_tma_atom(load, tensor, layout, (rows, BOX)))
        return boxes

    @cute.jit
    def _run(
        self,
        w_atom: cute.CopyAtom,
        w: cute.Tensor,
        x_atom: cute.CopyAtom,
        x: cute.Tensor,
        out: Any,
    ) -> None:
        """The whole kernel; sums go where `_store` puts them."""
        form = cutlass.const_expr(self.map)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(thread // prim.WARP)

        memory = SmemAllocator()
        full = memory.allocate_array(Int64, form.ring)
        empty = memory.allocate_array(Int64, form.ring)
        slots = cutlass.const_expr(form.ring * form.boxes)
        w_ring = self._ring(memory, form.rows, form.held_rows, slots)
        x_ring = self._ring(memory, form.held_batch, form.held_batch, slots)

        cute.arch.griddepcontrol_launch_dependents()
        if thread == 0:
            for slot in cutlass.range_constexpr(form.ring):
                cute.arch.mbarrier_init(full + slot, 1)
                cute.arch.mbarrier_init(empty + slot, form.warps)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        columns = cutlass.const_expr(form.held_batch // (16 if form.split_batch else 8))
        acc = cute.make_rmem_tensor((4, columns, form.tiles), Float32)
        total = self._totals(acc)
        if warp == form.warps:
            self._feed(w_atom, w, w_ring, x_atom, x, x_ring, full, empty, block)
        else:
            cute.arch.griddepcontrol_wait()
            place = self._place(out)
            acc.fill(0.0)
            total.fill(0.0)
            for chunk in cutlass.range(form.chunks, unroll=1):
                slot = chunk % form.ring
                cute.arch.mbarrier_wait(full + slot, (chunk // form.ring) % 2)
                box = slot * form.boxes + warp // 2
                self._multiply(acc, w_ring, x_ring, box, warp % 2, thread % prim.WARP)
                if cutlass.const_expr(form.ring < form.chunks):  # noqa: SIM102 - or there is no code
                    if chunk < form.chunks - form.ring:  # nobody fills the last ones again
                        prim.leave(empty + slot, thread % prim.WARP)
                if cutlass.const_expr(self.fresh):
                    for n in cutlass.range_constexpr(columns):
                        for m in cutlass.range_constexpr(form.tiles):
                            for i in cutlass.range_constexpr(4):
                                total[i, n, m] = total[i, n, m] + acc[i, n, m]
                    acc.fill(0.0)
            cute.arch.barrier(barrier_id=1, number_of_threads=form.warps * prim.WARP)
            partial = cute.recast_ptr(w_ring.iterator, dtype=Float32)
            self._spread(total, partial, warp, thread % prim.WARP)
            cute.arch.barrier(barrier_id=1, number_of_threads=form.warps * prim.WARP)
            self._store(partial, out, place, block, thread)

    def _totals(self, acc: Any) -> Any:
        """Where the sums of all stages are."""
        return cute.make_rmem_tensor(acc.shape, Float32) if self.fresh else acc

    def _ring(self, memory: Any, rows: int, held: int, slots: int) -> cute.Tensor:
        """Boxes [rows, BOX] in shared memory, all stages' together, swizzled as TMA does it."""
        layout = cute.make_layout((rows, BOX, slots), stride=(BOX, 1, held * BOX))
        storage = memory.allocate(held * BOX * slots * 2, 1024)
        swizzled = cute.recast_ptr(storage, cute.make_swizzle(3, 4, 3), dtype=BFloat16)
        return cute.make_tensor(swizzled, layout)

    @cute.jit
    def _feed(
        self,
        w_atom: cute.CopyAtom,
        w: cute.Tensor,
        w_ring: cute.Tensor,
        x_atom: cute.CopyAtom,
        x: cute.Tensor,
        x_ring: cute.Tensor,
        full: cute.Pointer,
        empty: cute.Pointer,
        block: Int32,
    ) -> None:
        """The producing warp: one thread fills stage after stage."""
        form = cutlass.const_expr(self.map)
        bytes_ = cutlass.const_expr((form.rows + form.held_batch) * form.boxes * BOX * 2)
        w_shared, w_global = self._parts(w_atom, w, w_ring, form.rows, block)
        x_shared, x_global = self._parts(x_atom, x, x_ring, form.held_batch, 0)
        with cute.arch.elect_one():
            for chunk in cutlass.range_constexpr(form.ring):
                cute.arch.mbarrier_arrive_and_expect_tx(full + chunk, bytes_)
                self._fetch(w_atom, w_global, w_shared, full, chunk, chunk)
            cute.arch.griddepcontrol_wait()
            for chunk in cutlass.range_constexpr(form.ring):
                self._fetch(x_atom, x_global, x_shared, full, chunk, chunk)
            for chunk in cutlass.range(form.ring, form.chunks, unroll=1):
                slot = chunk % form.ring
                cute.arch.mbarrier_wait(empty + slot, (chunk // form.ring + 1) % 2)
                cute.arch.mbarrier_arrive_and_expect_tx(full + slot, bytes_)
                self._fetch(w_atom, w_global, w_shared, full, slot, chunk)
                self._fetch(x_atom, x_global, x_shared, full, slot, chunk)

    def _parts(
        self, atom: cute.CopyAtom, tensor: cute.Tensor, ring: cute.Tensor, rows: int, block: Any
    ) -> tuple[cute.Tensor, cute.Tensor]:
        """Boxes of the ring and of one block's rows in memory, as TMA takes them."""
        tiles = cute.local_tile(tensor, (rows, BOX), (block, None))
        parts: tuple[cute.Tensor, cute.Tensor] = cpasync.tma_partition(
            atom, 0, cute.make_layout(1),
            cute.group_modes(ring, 0, 2), cute.group_modes(tiles, 0, 2),
        )  # fmt: skip
        return parts

    def _fetch(self, atom: Any, whole: Any, ring: Any, full: Any, slot: Any, chunk: Any) -> None:
        """Start the copies of one stage. Both operands are read once or fit L2 whatever its policy;
        evict-first keeps what others will read."""
        for box in range(self.map.boxes):
            cute.copy(
                atom,
                whole[None, chunk * self.map.boxes + box],
                ring[None, slot * self.map.boxes + box],
                tma_bar_ptr=full + slot,
                cache_policy=Int64(prim.EVICT_FIRST),
            )

    def _multiply(
        self, acc: Any, w_ring: Any, x_ring: Any, box: Int32, side: Int32, lane: Int32
    ) -> None:
        """Add one warp's share of the product of a box of weights and one of activations."""
        form = self.map
        w_base = prim.shared_address(w_ring.iterator) + box * (form.held_rows * BOX * 2)
        x_base = prim.shared_address(x_ring.iterator) + box * (form.held_batch * BOX * 2)
        # Lane l names one row of matrix l // 8: rows 0-7 and 8-15 of the left halves, then of the
        # right halves; for x, eight batch rows at four places of 8 columns.
        w_row, x_row = lane % 16, lane % 8
        w_place, x_place = lane // 16, lane // 8
        steps = BOX // STEP
        if form.split_batch:
            x_row = x_row + side * (form.held_batch // 2)
        else:
            steps //= 2
            w_place, x_place = w_place + 4 * side, x_place + 4 * side
        right: list[Any] = []
        for step in range(steps):
            if step % 2 == 0:
                right = [
                    prim.load_matrices(x_base + self._swizzled(8 * n + x_row, x_place + 2 * step))
                    for n in range(acc.shape[1])
                ]
            for m in range(form.tiles):
                place = self._swizzled(16 * m + w_row, w_place + 2 * step)
                left = prim.load_matrices(w_base + place)
                for n, columns in enumerate(right):
                    at = [(i, n, m) for i in range(4)]
                    pair = columns[2 * (step % 2) : 2 * (step % 2) + 2]
                    made = prim.multiply_add(left, pair, [acc[i] for i in at])
                    for i, value in zip(at, made, strict=True):
                        acc[i] = value

    def _swizzled(self, row: Int32, place: Int32) -> Int32:
        """Offset of 16 bytes in a box: TMA exchanges the places of a row by its number."""
        return row * (BOX * 2) + (place ^ (row % 8)) * 16

    @cute.jit
    def _spread(self, acc: cute.Tensor, partial: cute.Pointer, warp: Int32, lane: Int32) -> None:
        """Put the warps' sums side by side in shared memory."""
        form = cutlass.const_expr(self.map)
        each = cutlass.const_expr(form.pitch * form.held_batch)
        mine, first = warp, Int32(0)
        if cutlass.const_expr(form.split_batch):
            mine, first = warp // 2, warp % 2 * (form.held_batch // 2)
        for m in cutlass.range_constexpr(form.tiles):
            for n in cutlass.range_constexpr(acc.shape[1]):
                for i in cutlass.range_constexpr(4):
                    row = m * 16 + lane // 4 + 8 * (i // 2)
                    column = first + n * 8 + 2 * (lane % 4) + i % 2
                    partial[mine * each + column * form.pitch + row] = acc[i, n, m]

    def _place(self, out: cute.Tensor) -> Any:
        """What `_store` has to read first, so that it is on its way during the products."""
        return None

    @cute.jit
    def _store(
        self, partial: cute.Pointer, out: cute.Tensor, place: Any, block: Int32, thread: Int32
    ) -> None:
        """Add the warps' sums up and store them."""
        form = cutlass.const_expr(self.map)
        each = cutlass.const_expr(form.pitch * form.held_batch)
        threads = cutlass.const_expr(form.warps * prim.WARP)
        for turn in cutlass.range(-(-(form.rows * form.batch) // threads), unroll=1):
            index = turn * threads + thread
            column, row = index // form.rows, index % form.rows
            if index < form.rows * form.batch and block * form.rows + row < form.outputs:
                total = Float32(0.0)
                for part in cutlass.range_constexpr(form.partials):
                    total += partial[part * each + column * form.pitch + row]
                out[column, block * form.rows + row] = total.to(BFloat16)
