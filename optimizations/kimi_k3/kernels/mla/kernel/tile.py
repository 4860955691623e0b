"""What a block of the core computes with a tile of cache rows.

Owns: queries into shared memory, scores, weights, latent sums, their store. Does not own: which
tiles, when they come. Read by: `mla.kernel.core`; needs CuTe DSL and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.mla.form import GROUP, LATENT, ROW, WARPS, Attend

STEP = 32
"""Bytes of a cache row that one load of matrices takes: 16 BF16 or 32 FP8 numbers."""
MINE = LATENT // WARPS
"""Latent columns of one warp."""


class Tile:
    """The arithmetic of one form."""

    def __init__(self, form: Attend) -> None:
        self.form = form
        self.kind = "f16" if form.fp8 else "bf16"

    def place(self, split: Any, group: Any, row: Any, request: Any) -> Int32:
        """Number of a query's partial result: [splits, q, B, H]."""
        form = self.form
        index = group * form.held + row
        token, head = index // form.heads, index % form.heads
        return ((split * form.tokens + token) * form.batch + request) * form.heads + head

    def take(self, query: Any, queries: Any, group: Any, request: Any, thread: Any) -> None:
        """The block's queries into shared memory, zeros where it has fewer than whole tiles."""
        form = self.form
        chunks, threads = ROW // 8, WARPS * prim.WARP
        turns = -(-(form.held * chunks) // threads)
        held: list[Sequence[Uint32]] = []
        for turn in range(turns):
            index = cutlass.min(turn * threads + thread, Int32(form.held * chunks - 1))
            row, chunk = index // chunks, index % chunks
            inside = group * form.held + row < form.rows
            at = self.place(0, group, cutlass.select_(inside, row, Int32(0)), request)
            words = prim.load(prim.address(query, at * ROW + 8 * chunk))
            held.append([Uint32(cutlass.select_(inside, word, Uint32(0))) for word in words])
        for turn, kept in enumerate(held):
            index = cutlass.min(turn * threads + thread, Int32(form.held * chunks - 1))
            row, chunk = index // chunks, index % chunks
            at = prim.shared_address(queries) + row * form.query_pitch
            if form.fp8:
                # Pairs in the order in which `score` finds an FP8 row's: see `prim.widened`.
                pairs = prim.packed(prim.unpacked(tuple(kept)), "f16")
                at = at + chunk // 2 * 32 + chunk % 2 * 8
                prim.store_shared(at, pairs[0::2])
                prim.store_shared(at + 16, pairs[1::2])
            else:
                prim.store_shared(at + 16 * chunk, kept)

    def score(self, stage: Any, queries: Any, scores: Any, warp: Any, lane: Any) -> None:
        """Products of 16 cache rows and all queries over this warp's columns."""
        form = self.form
        rows, section = warp % (form.tile // GROUP), warp // (form.tile // GROUP)
        steps = form.row_bytes // (STEP * form.sections)
        each = 2 if form.fp8 else 1
        row_at = (
            stage + (GROUP * rows + lane // 16 * 8 + lane % 8) * form.pitch
            + section * (steps * STEP) + lane // 8 % 2 * 16
        )  # fmt: skip
        query_at = (
            prim.shared_address(queries) + lane % 16 * form.query_pitch
            + section * (steps * each * 32) + lane // 16 * 16
        )  # fmt: skip
        acc: list[list[Any]] = [[[Float32(0.0)] * 4] * 2 for _ in range(form.tiles)]
        for step in range(steps):
            words = prim.load_matrices(row_at + step * STEP)
            if form.fp8:
                wide = [prim.widened(word) for word in words]
                rights = [(wide[0], wide[2]), (wide[1], wide[3])]
            else:
                rights = [(words[0:2], words[2:4])]
            for half, right in enumerate(rights):
                for m in range(form.tiles):
                    at = query_at + m * (GROUP * form.query_pitch) + (step * each + half) * 32
                    left = prim.load_matrices(at)
                    acc[m] = [
                        prim.multiply_add(left, right[n], acc[m][n], self.kind) for n in range(2)
                    ]
        for m in range(form.tiles):
            for n in range(2):
                for half in range(2):
                    row = section * form.held + GROUP * m + 8 * half + lane // 4
                    column = GROUP * rows + 8 * n + 2 * (lane % 4)
                    at = prim.shared_address(scores + row * form.score_pitch + column)
                    prim.store_shared(at, acc[m][n][2 * half : 2 * half + 2])

    @cute.jit
    def weigh(
        self,
        scores: cute.Pointer,
        weights: cute.Pointer,
        factors: cute.Pointer,
        limits: cute.Tensor,
        tops: cute.Tensor,
        totals: cute.Tensor,
        factor: Float32,
        start: Int32,
        warp: Int32,
        lane: Int32,
    ) -> None:
        """Weights of a tile's rows for this warp's queries, and how much earlier sums fade; all
        queries in each step, so that their latencies overlap."""
        form = cutlass.const_expr(self.form)
        own, turns = range(form.held // WARPS), range(form.tile // prim.WARP)
        found = [
            [self._found(scores, warp + WARPS * i, turn * prim.WARP + lane) for turn in turns]
            for i in own
        ]
        nothing = Float32(-cutlass.Float32.inf)
        for i in own:
            for turn in turns:
                visible = start + turn * prim.WARP + lane < limits[i]
                found[i][turn] = cutlass.select_(visible, found[i][turn] * factor, nothing)
        made = [tops[i] for i in own]
        for i in own:
            for one in found[i]:
                made[i] = cute.arch.fmax(made[i], one)
        for offset in (1, 2, 4, 8, 16):
            made = [cute.arch.fmax(m, cute.arch.shuffle_sync_bfly(m, offset)) for m in made]
        fades = [prim.exp2(tops[i] - made[i]) for i in own]
        powers = [[prim.exp2(one - made[i]) for one in found[i]] for i in own]
        for i in own:
            total = totals[i] * fades[i]
            for turn in turns:
                total = total + powers[i][turn]
                place = (warp + WARPS * i) * form.weight_pitch + 2 * (turn * prim.WARP + lane)
                place = prim.shared_address(weights) + place
                prim.store_shared_half(place, powers[i][turn], self.kind)
            tops[i] = made[i]
            totals[i] = total
            if lane == 0:
                factors[warp + WARPS * i] = fades[i]

    def _found(self, scores: Any, row: Any, column: Any) -> Float32:
        """A query's product with a row: the sum of the sections."""
        form = self.form
        total = scores[row * form.score_pitch + column]
        for section in range(1, form.sections):
            total = total + scores[(section * form.held + row) * form.score_pitch + column]
        return total

    def add(self, acc: Any, stage: Any, weights: Any, factors: Any, warp: Any, lane: Any) -> None:
        """Fade the sums and add a tile's weighted rows, this warp's columns."""
        form = self.form
        for m in range(form.tiles):
            fades = [factors[GROUP * m + 8 * half + lane // 4] for half in range(2)]
            for n in range(MINE // 8):
                for i in range(4):
                    acc[i, n, m] = acc[i, n, m] * fades[i // 2]
        width = form.row_bytes // ROW
        weight_at = (
            prim.shared_address(weights) + lane % 16 * form.weight_pitch + lane // 16 * 16
        )  # fmt: skip
        row_at = stage + lane % 16 * form.pitch + warp * (MINE * width) + lane // 16 * 16
        for step in range(form.tile // GROUP):
            lefts = [
                prim.load_matrices(weight_at + m * (GROUP * form.weight_pitch) + step * 32)
                for m in range(form.tiles)
            ]
            for j in range(MINE * width // STEP):
                at = row_at + step * (GROUP * form.pitch) + j * STEP
                words = prim.load_matrices(at, transposed=True)
                rights = [words[0:2], words[2:4]]
                if form.fp8:
                    pairs = [[prim.widened_columns(word) for word in pair] for pair in rights]
                    rights = [(up[i], low[i]) for up, low in pairs for i in range(2)]
                for n, right in enumerate(rights, start=j * len(rights)):
                    for m, left in enumerate(lefts):
                        before = [acc[i, n, m] for i in range(4)]
                        made = prim.multiply_add(left, right, before, self.kind)
                        for i, value in enumerate(made):
                            acc[i, n, m] = value

    def store(
        self,
        acc: Any,
        partial: Any,
        place: Any,
        factor: Any,
        m: int,
        half: int,
        warp: Any,
        lane: Any,
    ) -> None:
        """One query's result, this warp's columns."""
        base = Int64(place) * LATENT + MINE * warp
        four = lane % 4
        if self.form.fp8:
            for n in range(0, MINE // 8, 2):  # even columns, odd columns
                values = [acc[2 * half + i, n + odd, m] * factor for i in (0, 1) for odd in (0, 1)]
                words = [value.bitcast(Uint32) for value in values]
                prim.store_words(prim.address(partial, base + 8 * n + 4 * four), words)
        else:
            for n in range(MINE // 8):
                words = [(acc[2 * half + i, n, m] * factor).bitcast(Uint32) for i in range(2)]
                prim.store_words(prim.address(partial, base + 8 * n + 2 * four), words)
