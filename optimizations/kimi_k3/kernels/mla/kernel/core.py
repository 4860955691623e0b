"""Attention of an MLA layer on a GPU, over a paged cache of latents, split along the context.

Owns: splits, the ring of tiles, running maxima. Does not own: what is computed with a tile
(`tile`), which pages a request has, the sum of the splits (`value`). Read by: `mla.launch`; needs
CuTe DSL and nothing else.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint8, Uint32
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.mla.form import GROUP, HEAD, LATENT, PRODUCERS, ROW, WARPS, Attend
from kimi_k3.kernels.mla.kernel.tile import MINE, Tile

SCALE = HEAD**-0.5 * math.log2(math.e)
"""Of scores, for powers of two."""
LOWEST = -3e38
"""Where running maxima start: finite, so that the difference of two is a number."""


class Core:
    """query [q B, H, 576] BF16, token by token; cache [rows, 576] BF16, or FP8 (E4M3) as bytes,
    times scale [1] FP32; table [B, pages] int32: pages of a request in order; seen [q, B] int32:
    cache rows of its request that a token sees, falling in no token -> partial [splits, q B, H,
    512] and lse [splits, q B, H] FP32, as `value` takes them. Rows beyond a count may hold
    anything. A split without rows leaves its result unwritten and its lse minus infinity.

    A block takes up to 48 queries of a request and every tile of its share of the rows. Four warps
    feed a ring of tiles by bulk copies, row by row, so a page may have any size. The scores of 16
    rows with all queries are the work of a few warps, each some columns; their sums meet in shared
    memory, where each warp turns some queries' scores into weights. Each warp owns 64 of the 512
    latent columns. BF16 products; FP8 rows and the queries and weights that meet them as FP16,
    which holds every E4M3 number. FP32 sums; weights are rounded.

    Table and counts are read, and rows brought into L2, before the grid-dependency wait: a step's
    metadata is written before the step, and a prefetch hands no value to the program.
    Sources: Kimi K3 technical report (arXiv 2607.24653), section 2.1; FlashAttention (arXiv
    2205.14135) and FlashDecoding (Dao et al., 2023) for the running maximum and the splits.
    """

    def __init__(self, form: Attend) -> None:
        if form.stages < 2:
            raise ValueError(f"{form.rows} queries leave no room for two tiles")
        self.form = form
        self.tile = Tile(form)

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.form
        rows = form.tokens * form.batch
        return {
            "query": Argument("bfloat16", (rows, form.heads, ROW)),
            "cache": Argument("uint8" if form.fp8 else "bfloat16", (form.cache_rows, ROW)),
            "table": Argument("int32", (form.batch, form.width), "own"),
            "seen": Argument("int32", (form.tokens, form.batch), "own"),
            "scale": Argument("float32", (1,), "static"),
            "partial": Argument("float32", (form.splits, rows, form.heads, LATENT)),
            "lse": Argument("float32", (form.splits, rows, form.heads)),
        }

    @cute.jit
    def __call__(
        self,
        query: cute.Tensor,
        cache: cute.Tensor,
        table: cute.Tensor,
        seen: cute.Tensor,
        scale: cute.Tensor,
        partial: cute.Tensor,
        lse: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        form = self.form
        self.kernel(query, cache, table, seen, scale, partial, lse).launch(
            grid=(form.splits, form.groups, form.batch),
            block=((WARPS + PRODUCERS) * prim.WARP, 1, 1),
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self,
        query: cute.Tensor,
        cache: cute.Tensor,
        table: cute.Tensor,
        seen: cute.Tensor,
        scale: cute.Tensor,
        partial: cute.Tensor,
        lse: cute.Tensor,
    ) -> None:
        form = cutlass.const_expr(self.form)
        thread, _, _ = cute.arch.thread_idx()
        split, group, request = cute.arch.block_idx()
        lane = thread % prim.WARP
        warp = cute.arch.make_warp_uniform(thread // prim.WARP)

        memory = SmemAllocator()
        ring = memory.allocate_array(
            Uint8, form.stages * form.tile * form.pitch, byte_alignment=128
        )
        queries = memory.allocate_array(Uint8, form.held * form.query_pitch, byte_alignment=128)
        weights = memory.allocate_array(Uint8, form.held * form.weight_pitch, byte_alignment=128)
        scores = memory.allocate_array(
            Float32, form.sections * form.held * form.score_pitch, byte_alignment=128
        )
        factors = memory.allocate_array(Float32, 2 * form.held)
        full = memory.allocate_array(Int64, form.stages)
        empty = memory.allocate_array(Int64, form.stages)

        cute.arch.griddepcontrol_launch_dependents()
        if thread == 0:
            for slot in cutlass.range_constexpr(form.stages):
                cute.arch.mbarrier_init(full + slot, PRODUCERS)
                cute.arch.mbarrier_init(empty + slot, WARPS)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

        most = self._count(seen, (form.tokens - 1) * form.batch + request)
        tiles = (most + form.tile - 1) // form.tile
        each = (tiles + form.splits - 1) // form.splits
        first = split * each
        count = cutlass.max(cutlass.min(each, tiles - first), Int32(0))
        if warp >= WARPS:
            cells = warp - WARPS, lane
            self._feed(cache, table, ring, full, empty, first, count, most, request, *cells)
        else:
            acc = cute.make_rmem_tensor((4, MINE // 8, form.tiles), Float32)
            acc.fill(0.0)
            self._consume(
                query, seen, scale, partial, lse, acc, ring, queries, weights, scores, factors,
                full, empty, first, count, split, group, request, warp, thread,
            )  # fmt: skip

    @cute.jit
    def _feed(
        self,
        cache: cute.Tensor,
        table: cute.Tensor,
        ring: cute.Pointer,
        full: cute.Pointer,
        empty: cute.Pointer,
        first: Int32,
        count: Int32,
        most: Int32,
        request: Int32,
        producer: Int32,
        lane: Int32,
    ) -> None:
        """A producing warp: its part of every tile, a row per lane."""
        form = cutlass.const_expr(self.form)
        rows = cutlass.const_expr(form.tile // PRODUCERS)
        place = producer * rows + lane % rows
        early = cutlass.min(count, Int32(form.stages))
        for tile in cutlass.range(early, unroll=1):
            at = self._row(cache, table, (first + tile) * form.tile + place, most, request)
            if lane < rows:
                prim.prefetch(at, form.row_bytes)
        at = self._row(cache, table, first * form.tile + place, most, request)
        cute.arch.griddepcontrol_wait()
        for tile in cutlass.range(count, unroll=1):
            slot = tile % form.stages
            if tile >= form.stages:
                cute.arch.mbarrier_wait(empty + slot, (tile // form.stages + 1) % 2)
            if lane == 0:
                size = cutlass.const_expr(rows * form.row_bytes)
                cute.arch.mbarrier_arrive_and_expect_tx(full + slot, size)
            if lane < rows:
                to = ring + (slot * form.tile + place) * form.pitch
                prim.fetch(to, at, form.row_bytes, full + slot)
            at = self._row(cache, table, (first + tile + 1) * form.tile + place, most, request)

    def _row(self, cache: Any, table: Any, index: Any, most: Any, request: Any) -> Int64:
        """Address of a request's cache row; beyond the last that of the last, which has weight 0
        there and is a number."""
        form = self.form
        index = cutlass.min(index, cutlass.max(most, Int32(1)) - 1)
        at = prim.address(table, request * form.width + index // form.page)
        page = prim.load_word(at).bitcast(Int32)
        return prim.address(cache, (Int64(page) * form.page + index % form.page) * ROW)

    @cute.jit
    def _consume(
        self,
        query: cute.Tensor,
        seen: cute.Tensor,
        scale: cute.Tensor,
        partial: cute.Tensor,
        lse: cute.Tensor,
        acc: cute.Tensor,
        ring: cute.Pointer,
        queries: cute.Pointer,
        weights: cute.Pointer,
        scores: cute.Pointer,
        factors: cute.Pointer,
        full: cute.Pointer,
        empty: cute.Pointer,
        first: Int32,
        count: Int32,
        split: Int32,
        group: Int32,
        request: Int32,
        warp: Int32,
        thread: Int32,
    ) -> None:
        """The eight multiplying warps."""
        form = cutlass.const_expr(self.form)
        lane = thread % prim.WARP
        own = cutlass.const_expr(form.held // WARPS)
        # Queries whose weights this warp works out: `warp` and every eighth behind it.
        limits = cute.make_rmem_tensor((own,), Int32)
        tops = cute.make_rmem_tensor((own,), Float32)
        totals = cute.make_rmem_tensor((own,), Float32)
        tops.fill(LOWEST)
        totals.fill(0.0)
        for i in cutlass.range_constexpr(own):
            token = (group * form.held + warp + WARPS * i) // form.heads
            token = cutlass.min(token, Int32(form.tokens - 1))
            limits[i] = self._count(seen, token * form.batch + request)
        shrink, factor = scale[0], SCALE * scale[0]
        cute.arch.griddepcontrol_wait()
        if count > 0:
            self.tile.take(query, queries, group, request, thread)
        cute.arch.barrier(barrier_id=1, number_of_threads=WARPS * prim.WARP)

        for tile in cutlass.range(count, unroll=1):
            slot = tile % form.stages
            stage = prim.shared_address(ring) + slot * (form.tile * form.pitch)
            cute.arch.mbarrier_wait(full + slot, tile // form.stages % 2)
            self.tile.score(stage, queries, scores, warp, lane)
            cute.arch.barrier(barrier_id=1, number_of_threads=WARPS * prim.WARP)
            start = (first + tile) * form.tile
            self.tile.weigh(
                scores, weights, factors, limits, tops, totals, factor, start, warp, lane
            )
            cute.arch.barrier(barrier_id=1, number_of_threads=WARPS * prim.WARP)
            self.tile.add(acc, stage, weights, factors, warp, lane)
            prim.leave(empty + slot, lane)

        for i in cutlass.range_constexpr(own):
            row = warp + WARPS * i
            total = prim.warp_sum(totals[i])
            if lane == 0:
                factors[form.held + row] = cutlass.select_(
                    total == 0.0, Float32(0.0), shrink / total
                )
                at = self.tile.place(split, group, row, request)
                if group * form.held + row < form.rows:
                    whole = tops[i] + prim.log2(total)
                    prim.store_words(prim.address(lse, at), [whole.bitcast(Uint32)])
        cute.arch.barrier(barrier_id=1, number_of_threads=WARPS * prim.WARP)
        if count > 0:
            for m in cutlass.range_constexpr(form.tiles):
                for half in cutlass.range_constexpr(2):
                    row = GROUP * m + 8 * half + lane // 4
                    at = self.tile.place(split, group, row, request)
                    if group * form.held + row < form.rows:
                        self.tile.store(
                            acc, partial, at, factors[form.held + row], m, half, warp, lane
                        )

    def _count(self, seen: Any, at: Any) -> Int32:
        return prim.load_word(prim.address(seen, at)).bitcast(Int32)
