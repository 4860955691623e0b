"""Queries of an MLA layer on a GPU: norms, up-projection, absorption and the new cache rows.

Owns: device code. Does not own: where a token's cache row lies. Read by: `mla.launch`; needs CuTe
DSL and nothing else.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, Uint32
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.mla.form import (
    GROUP,
    HEAD,
    LATENT,
    NOPE,
    PARTS,
    QUERY,
    ROW,
    WARPS,
    Prepare,
    pitch,
)
from kimi_k3.kernels.mla.kernel.rows import Rows, load_slot

COLUMNS = 32
"""Columns of two matrix instructions: 16 bytes in each of four lanes."""
SECTION = QUERY // WARPS
"""Columns of the query latent that one warp multiplies."""
MINE = HEAD // PARTS
"""Numbers of a head's query that one block makes."""
WORDS = NOPE // 2 + 16
"""Words from row to row of the shared queries: two rows' equal places in different banks."""


class Query:
    """projected [R, pitch] BF16: query latent 1536 | latent 512 | shared key 64 | gate H 128. slot
    [R] int32: the cache row a token fills. query_norm [1536], latent_norm [512], query_up [H 192,
    1536], key_up [H, 512, 128] BF16, scale [1] FP32 -> cache [rows, 576] BF16, or FP8 as bytes:
    [normalised latent | shared key] / scale; query [R, H, 576] BF16: [absorbed | shared part].

    A token whose slot is negative is nobody's: no row is written and its queries are 0.

    One cluster of 8 blocks per head. A block's weights, 24 rows of the up-projection and 64 of the
    absorption, are in registers before the grid-dependency wait. Each of 8 warps multiplies its
    columns of 16 tokens at a time; the norm's factor is applied to the sums, after the gain and the
    rounding to BF16. The head's 128 plain numbers cross the cluster, rounded to BF16, and every
    block absorbs them into 64 of the 512 columns. Meanwhile the last warp fills cache rows. FP32
    sums.
    Sources: Kimi K3 technical report (arXiv 2607.24653), section 2.1; DeepSeek-V2 (arXiv
    2405.04434), section 2.1, for the absorption.
    """

    def __init__(self, form: Prepare) -> None:
        self.form = form
        self.cache_rows = Rows(form)

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.form
        return {
            "projected": Argument("bfloat16", (form.rows, pitch(form.heads))),
            "slot": Argument("int32", (form.rows,)),
            "query_norm": Argument("bfloat16", (QUERY,), "static"),
            "latent_norm": Argument("bfloat16", (LATENT,), "static"),
            "query_up": Argument("bfloat16", (form.heads * HEAD, QUERY), "static"),
            "key_up": Argument("bfloat16", (form.heads, LATENT, NOPE), "static"),
            "scale": Argument("float32", (1,), "static"),
            "cache": Argument("uint8" if form.fp8 else "bfloat16", (form.cache_rows, ROW)),
            "query": Argument("bfloat16", (form.rows, form.heads, ROW)),
        }

    @cute.jit
    def __call__(
        self,
        projected: cute.Tensor,
        slot: cute.Tensor,
        query_norm: cute.Tensor,
        latent_norm: cute.Tensor,
        query_up: cute.Tensor,
        key_up: cute.Tensor,
        scale: cute.Tensor,
        cache: cute.Tensor,
        query: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self.kernel(
            projected, slot, query_norm, latent_norm, query_up, key_up, scale, cache, query
        ).launch(
            grid=(PARTS, self.form.heads, 1),
            block=(WARPS * prim.WARP, 1, 1),
            cluster=(PARTS, 1, 1),
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self,
        projected: cute.Tensor,
        slot: cute.Tensor,
        query_norm: cute.Tensor,
        latent_norm: cute.Tensor,
        query_up: cute.Tensor,
        key_up: cute.Tensor,
        scale: cute.Tensor,
        cache: cute.Tensor,
        query: cute.Tensor,
    ) -> None:
        thread, _, _ = cute.arch.thread_idx()
        part, head, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(thread // prim.WARP)

        memory = SmemAllocator()
        gains = memory.allocate_array(BFloat16, QUERY, byte_alignment=16)
        sums = memory.allocate_array(Float32, WARPS * GROUP * MINE, byte_alignment=16)
        squares = memory.allocate_array(Float32, 2 * WARPS * GROUP)
        shared = memory.allocate_array(Uint32, 2 * GROUP * WORDS, byte_alignment=16)
        barriers = memory.allocate_array(Int64, 2)

        cute.arch.griddepcontrol_launch_dependents()
        if thread == 0:
            for barrier in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(barriers + barrier, 1)
        cute.arch.mbarrier_init_fence()
        if thread < QUERY // 8:
            held = prim.load_static(prim.address(query_norm, 8 * thread))
            prim.store_shared(prim.shared_address(gains + 8 * thread), held)
        cute.arch.sync_threads()
        cute.arch.cluster_arrive_relaxed()
        self._prepare(
            projected, slot, latent_norm, query_up, key_up, scale, cache, query,
            gains, sums, squares, shared, barriers, part, head, warp, thread,
        )  # fmt: skip

    @cute.jit
    def _prepare(
        self,
        projected: cute.Tensor,
        slot: cute.Tensor,
        latent_norm: cute.Tensor,
        query_up: cute.Tensor,
        key_up: cute.Tensor,
        scale: cute.Tensor,
        cache: cute.Tensor,
        query: cute.Tensor,
        gains: cute.Pointer,
        sums: cute.Pointer,
        squares: cute.Pointer,
        shared: cute.Pointer,
        barriers: cute.Pointer,
        part: Int32,
        head: Int32,
        warp: Int32,
        thread: Int32,
    ) -> None:
        form = cutlass.const_expr(self.form)
        lane = thread % prim.WARP
        row, four = lane // 4, lane % 4
        columns = [warp * SECTION + COLUMNS * i + 8 * four for i in range(SECTION // COLUMNS)]
        first_up = (head * HEAD + MINE * part + row) * QUERY
        ups = [
            [prim.load_early(prim.address(query_up, first_up + 8 * n * QUERY + c)) for c in columns]
            for n in range(MINE // 8)
        ]
        output = LATENT // PARTS * part + 8 * warp
        first_key = (head * LATENT + output + row) * NOPE + 8 * four
        keys = [
            prim.load_early(prim.address(key_up, first_key + COLUMNS * i))
            for i in range(NOPE // COLUMNS)
        ]
        # Every block's barriers must be set up before another block sends.
        cute.arch.cluster_wait()
        cute.arch.griddepcontrol_wait()

        groups = cutlass.const_expr(-(-form.rows // GROUP))
        for group in cutlass.range_constexpr(groups + 1):
            made: list[Any] = []
            if cutlass.const_expr(group < groups):
                made = self._multiply(
                    projected, gains, squares, ups, columns, group, warp, row, four
                )
            # The numbers of one group cross the cluster while the next is multiplied. A block may
            # send for one group more than another has absorbed, never two.
            if cutlass.const_expr(group > 0):
                before = cutlass.const_expr(group - 1)
                cute.arch.mbarrier_wait(barriers + before % 2, before // 2 % 2)
                self._absorb(query, shared, keys, before, head, output, row, four)
            if cutlass.const_expr(group < groups):
                for n in cutlass.range_constexpr(MINE // 8):
                    for half in cutlass.range_constexpr(len(made[n]) // 2):
                        at = (warp * GROUP + 8 * half + row) * MINE + 8 * n + 2 * four
                        pair = made[n][2 * half : 2 * half + 2]
                        prim.store_shared(prim.shared_address(sums + at), pair)
                cute.arch.sync_threads()
                self._share(slot, query, sums, squares, shared, barriers, group, part, head, thread)
                if cutlass.const_expr(group == 0):
                    block = part + PARTS * head
                    if warp == WARPS - 1:
                        self.cache_rows.fill(
                            projected, slot, latent_norm, scale, cache, block, lane
                        )
                if cutlass.const_expr(group + 1 < groups):
                    cute.arch.sync_threads()

    @cute.jit
    def _multiply(
        self,
        projected: cute.Tensor,
        gains: cute.Pointer,
        squares: cute.Pointer,
        ups: Any,
        columns: Any,
        group: cutlass.Constexpr[int],
        warp: Int32,
        row: Int32,
        four: Int32,
    ) -> list[Any]:
        """This warp's part of the up-projection, without the norm's factor, and of the sums of
        squares that the factor needs."""
        form = cutlass.const_expr(self.form)
        halves = cutlass.const_expr(min(2, -(-(form.rows - GROUP * group) // 8)))
        raw = []
        for half in cutlass.range_constexpr(halves):
            token = cutlass.min(GROUP * group + row + 8 * half, Int32(form.rows - 1))
            base = token * pitch(form.heads)
            raw.append([prim.load(prim.address(projected, base + c)) for c in columns])
        left = []
        for half in cutlass.range_constexpr(halves):
            square = Float32(0.0)
            words = []
            for i in cutlass.range_constexpr(len(columns)):
                values = prim.unpacked(raw[half][i])
                square = square + prim.dot(values, values)
                gain = prim.unpacked(prim.load_shared(gains + columns[i]))
                words.append(prim.packed([v * g for v, g in zip(values, gain, strict=True)]))
            square = square + cute.arch.shuffle_sync_bfly(square, 1)
            square = square + cute.arch.shuffle_sync_bfly(square, 2)
            if four == 0:
                squares[(group % 2 * WARPS + warp) * GROUP + 8 * half + row] = square
            left.append(words)
        nothing = [Uint32(0)] * 4
        made = []
        for n in cutlass.range_constexpr(MINE // 8):
            acc = [Float32(0.0)] * 4
            for i in cutlass.range_constexpr(len(columns)):
                lower = left[1][i] if halves == 2 else nothing
                acc = list(prim.multiply_add_32(left[0][i], lower, ups[n][i], acc))
            made.append(acc[: 2 * halves])
        return made

    @cute.jit
    def _share(
        self,
        slot: cute.Tensor,
        query: cute.Tensor,
        sums: cute.Pointer,
        squares: cute.Pointer,
        shared: cute.Pointer,
        barriers: cute.Pointer,
        group: cutlass.Constexpr[int],
        part: Int32,
        head: Int32,
        thread: Int32,
    ) -> None:
        """Add the warps' sums up; plain numbers go to every block of the cluster."""
        form = cutlass.const_expr(self.form)
        live = cutlass.const_expr(min(GROUP, form.rows - GROUP * group))
        side = cutlass.const_expr(group % 2)
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barriers + side, live * NOPE * 2)
        # Eight numbers of one token each.
        mine, eight = thread // (MINE // 8), thread % (MINE // 8)
        if mine < live:
            token = GROUP * group + mine
            place = load_slot(slot, token)
            total = [Float32(0.0)] * 8
            square = Float32(0.0)
            for other in cutlass.range_constexpr(WARPS):
                at = (other * GROUP + mine) * MINE + 8 * eight
                more = [*prim.load_shared(sums + at), *prim.load_shared(sums + at + 4)]
                total = [a + b for a, b in zip(total, prim.floats(tuple(more)), strict=True)]
                square = square + squares[(side * WARPS + other) * GROUP + mine]
            factor = prim.rsqrt(square * (1.0 / QUERY) + form.eps)
            words = prim.packed([value * factor for value in total])
            # Of a token of nobody even numbers that are none become 0.
            words = [Uint32(cutlass.select_(place < 0, Uint32(0), word)) for word in words]
            number = MINE * part + 8 * eight
            if number < NOPE:
                to = shared + (side * GROUP + mine) * WORDS + number // 2
                for peer in cutlass.range_constexpr(PARTS):
                    prim.send_words(peer, to, words, barriers + side)
            else:
                there = (token * form.heads + head) * ROW + LATENT + number - NOPE
                prim.store_words(prim.address(query, there), words)

    @cute.jit
    def _absorb(
        self,
        query: cute.Tensor,
        shared: cute.Pointer,
        keys: Any,
        group: cutlass.Constexpr[int],
        head: Int32,
        output: Int32,
        row: Int32,
        four: Int32,
    ) -> None:
        """This warp's 8 columns of the absorbed queries."""
        form = cutlass.const_expr(self.form)
        live = cutlass.const_expr(min(GROUP, form.rows - GROUP * group))
        halves = cutlass.const_expr(-(-live // 8))
        acc: list[Any] = [Float32(0.0)] * 4
        for i in cutlass.range_constexpr(NOPE // COLUMNS):
            upper = shared + (group % 2 * GROUP + row) * WORDS + (COLUMNS * i + 8 * four) // 2
            lower = prim.load_shared(upper + 8 * WORDS) if halves == 2 else [Uint32(0)] * 4
            acc = list(prim.multiply_add_32(prim.load_shared(upper), lower, keys[i], acc))
        for half in cutlass.range_constexpr(halves):
            if row + 8 * half < live:
                token = GROUP * group + row + 8 * half
                at = (token * form.heads + head) * ROW + output + 2 * four
                word = prim.packed(acc[2 * half : 2 * half + 2])
                prim.store_words(prim.address(query, at), word)
