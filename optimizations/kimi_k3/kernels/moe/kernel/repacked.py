"""Routed experts with MXFP4 weights as vLLM's back end for Hopper repacks them, read in place.

Owns: products, exchange of hidden numbers and results where weights lie so, and their way through
the ring. Does not own: everything `experts` and `stages` do alike, the layout (`mxfp4.repacked`).
Read by: `moe.launch`, `kernels.compiled`; needs CuTe DSL and nothing else.

A lane's 16 bytes are its left operands of one instruction for each of four tiles, so weights need
neither a swizzle nor `ldmatrix`. 64 rows are one piece, so six blocks share an expert, not eight.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, Uint32
from cutlass.cute.nvgpu import cpasync
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.moe.form import (
    COLUMNS,
    GROUP,
    LOOKS,
    PIECE,
    PIECE_BYTES,
    STEP,
    WARPS,
    Repacked,
)
from kimi_k3.kernels.moe.kernel.experts import GROW, Experts
from kimi_k3.kernels.moe.kernel.plan import ALL, THREADS
from kimi_k3.kernels.moe.kernel.stages import Stages

TILES = PIECE // 16
"""Matrix instructions that a piece's rows take: a lane's 16 bytes are a word of each."""
_EARLY = 2
"""Barrier of the first pair of warps that share a tile."""


class RepackedExperts(Experts):
    """As `Experts`, but for w13 [E, L/16, 2I/64, 512], w2 [E, I/16, L/64, 512], s13 [E, L/32, 2I]
    and s2 [E, I/32, L] as `mxfp4.repacked` says, and the order of columns in a matrix instruction,
    which is that of memory.

    Both halves of a hidden vector, on two warps, meet tile by tile instead of unit by unit: the
    shared memory that saves is a stage.
    """

    routed: Repacked

    stages: RepackedStages

    def __init__(self, form: Repacked) -> None:
        super().__init__(form)
        self.stages = RepackedStages(form)

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.routed
        experts, latent, inter = form.experts, form.latent, form.inter
        rows, columns = 2 * inter // PIECE, latent // PIECE
        return super().arguments() | {
            "w13": Argument("uint8", (experts, latent // STEP, rows, PIECE_BYTES), "static"),
            "s13": Argument("uint8", (experts, latent // GROUP, 2 * inter), "static"),
            "w2": Argument("uint8", (experts, inter // STEP, columns, PIECE_BYTES), "static"),
            "s2": Argument("uint8", (experts, inter // GROUP, latent), "static"),
        }

    @cute.jit
    def __call__(
        self,
        z: cute.Tensor,
        ids: cute.Tensor,
        gains: cute.Tensor,
        w13: cute.Tensor,
        s13: cute.Tensor,
        w2: cute.Tensor,
        s2: cute.Tensor,
        slots: cute.Tensor,
        inbox: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        form, pieces = self.routed, self.stages.pieces
        bytes_ = 2 * form.inter // PIECE * PIECE_BYTES
        up_atom, up = pieces(w13, form.latent // STEP, bytes_, form.up_steps, PIECE_BYTES)
        up_scale_atom, up_scale = pieces(s13, form.latent // GROUP, 2 * form.inter, WARPS, PIECE)
        bytes_ = form.latent // PIECE * PIECE_BYTES
        down_atom, down = pieces(w2, form.inter // STEP, bytes_, form.inter // STEP, PIECE_BYTES)
        groups = form.inter // GROUP
        down_scale_atom, down_scale = pieces(s2, groups, form.latent, groups, PIECE)
        self.kernel(
            up_atom, up, up_scale_atom, up_scale, down_atom, down, down_scale_atom, down_scale, z,
            ids, gains, slots, inbox,
        ).launch(
            grid=(form.parts, form.crews, 1),
            block=(ALL, 1, 1),
            min_blocks_per_mp=form.resident,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self,
        up_atom: cute.CopyAtom,
        up: cute.Tensor,
        up_scale_atom: cute.CopyAtom,
        up_scale: cute.Tensor,
        down_atom: cute.CopyAtom,
        down: cute.Tensor,
        down_scale_atom: cute.CopyAtom,
        down_scale: cute.Tensor,
        z: cute.Tensor,
        ids: cute.Tensor,
        gains: cute.Tensor,
        slots: cute.Tensor,
        inbox: cute.Tensor,
    ) -> None:
        form = cutlass.const_expr(self.routed)
        thread, _, _ = cute.arch.thread_idx()
        part, group, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(thread // prim.WARP)

        memory = SmemAllocator()
        full = memory.allocate_array(Int64, form.stages)
        empty = memory.allocate_array(Int64, form.stages)
        ring = memory.allocate(form.stages * form.stage_bytes, 1024)
        scratch = memory.allocate_array(Float32, form.scratch, byte_alignment=128)
        table = memory.allocate_array(Int32, 2 * form.units)
        members = memory.allocate_array(Int32, form.pairs)

        cute.arch.griddepcontrol_launch_dependents()
        if thread == 0:
            for slot in cutlass.range_constexpr(form.stages):
                cute.arch.mbarrier_init(full + slot, 1)
                cute.arch.mbarrier_init(empty + slot, WARPS)
        cute.arch.mbarrier_init_fence()
        counts = cute.recast_ptr(scratch, dtype=Int32)
        for turn in cutlass.range_constexpr(-(-(form.experts + 1) // ALL)):
            if turn * ALL + thread <= form.experts:
                counts[turn * ALL + thread] = Int32(0)
        cute.arch.sync_threads()
        cute.arch.griddepcontrol_wait()

        count = Int32(0)
        if cutlass.const_expr(form.batch == 1):
            expert = prim.load_word(prim.address(ids, group)).bitcast(Int32)
            if expert >= 0 and expert < form.experts:
                count = Int32(1)
            if thread == 0:
                table[0] = expert
                table[1] = group * 256 + 1
            if thread < form.pairs:
                members[thread] = thread
            cute.arch.sync_threads()
        else:
            count = self.plan.sort(ids, group, thread, counts, table, members)

        if warp == WARPS:
            self.stages.feed(
                (up_atom, up, up_scale_atom, up_scale),
                (down_atom, down, down_scale_atom, down_scale),
                ring, (full, empty), (table, count, part),
            )  # fmt: skip
        else:
            for turn in cutlass.range(count + 1, unroll=1):
                if turn < count:
                    self._up(
                        z, inbox, (ring, scratch), (full, empty),
                        (table, members, count, part, group), turn, thread,
                    )  # fmt: skip
                if turn > 0:
                    self._down(
                        gains, slots, inbox, (ring, scratch), (full, empty),
                        (table, members, count, part, group), turn - 1, thread,
                    )  # fmt: skip

    def _operands(self, words: Any) -> tuple[Any, Any]:
        """A word is a lane's part of 16 rows and 16 columns."""
        first, second = (prim.nibbles(word) for word in words)
        return first, second

    def _words(self, at: Any) -> list[tuple[Any, ...]]:
        """Of each tile of a piece, both its words of a group of 32 columns."""
        first, second = (prim.load_shared(at + k * PIECE_BYTES) for k in range(2))
        return list(zip(first, second, strict=True))

    def _scales(self, at: Any) -> list[list[Float32]]:
        """Of rows l // 4 and 8 + l // 4 of each tile of a piece, for lane l."""
        words = prim.load_shared_pair(at)
        return [
            [prim.scale_of(words[tile // 2], 2 * (tile % 2) + half) for half in range(2)]
            for tile in range(TILES)
        ]

    @cute.jit
    def _up(
        self,
        z: cute.Tensor,
        inbox: cute.Tensor,
        places: Any,
        barriers: Any,
        work: Any,
        turn: Int32,
        thread: Int32,
    ) -> None:
        """First product of a unit, activation, and the hidden numbers to every block."""
        form = cutlass.const_expr(self.routed)
        ring, scratch = places
        full, empty = barriers
        table, members, _, part, group = work
        lane = thread % prim.WARP
        warp = cute.arch.make_warp_uniform(thread // prim.WARP)
        unit = table[2 * turn + 1]
        first = self.stages.first_up(turn, part)

        # A warp has every eighth group of columns, one of each stage. A lane holds 8 of the 32
        # activations of one token, two of every 8; columns without a token repeat the last.
        column = cutlass.min(lane // 4, unit % 256 - 1)
        token = members[unit // 256 + column] // form.top_k
        offset = token * form.latent + warp * GROUP
        step = cutlass.const_expr(WARPS * GROUP * 2)
        turns = cutlass.const_expr(form.up_chunks)
        # Once through for their size, which four lanes find together; the second time, in the
        # order of the instruction, they are in L1.
        whole = prim.address(z, offset + lane % 4 * 8)
        held: list[Any] = []
        for index in cutlass.range_constexpr(turns):
            held += prim.load(whole + index * step)
        grow, shrink = prim.half_scale(held)
        at = prim.address(z, offset + lane % 4 * 2)
        raw = cute.make_rmem_tensor(4, Uint32)
        for i in cutlass.range_constexpr(4):
            raw[i] = prim.load_word(at + 16 * i)
        tiles = cutlass.const_expr(2 * TILES)
        acc = cute.make_rmem_tensor((4, tiles), Float32)
        acc.fill(0.0)
        side = cutlass.const_expr(form.up_steps * PIECE_BYTES)
        behind = cutlass.const_expr(WARPS * PIECE)
        matrix = ring + (2 * warp * PIECE_BYTES + lane * 16)
        scale = ring + (form.weight_bytes + warp * PIECE + lane // 4 * 8)

        for chunk in cutlass.range(turns, unroll=1):
            values = prim.unpacked(tuple(raw[i] for i in range(4)))
            right = prim.packed([value * grow for value in values], "f16")
            ahead = at + cutlass.min(chunk + 1, Int32(turns - 1)) * step
            for i in cutlass.range_constexpr(4):
                raw[i] = prim.load_word(ahead + 16 * i)
            slot = self.stages.taken(full, first + chunk)
            stage = slot * form.stage_bytes
            gate, up = (self._words(matrix + (stage + half * side)) for half in range(2))
            of_gate, of_up = (self._scales(scale + (stage + half * behind)) for half in range(2))
            sums = self._products(
                [*gate, *up], [right] * tiles, [*of_gate, *of_up],
                [[acc[i, m] for i in range(4)] for m in range(tiles)],
            )  # fmt: skip
            for m in cutlass.range_constexpr(tiles):
                for i in cutlass.range_constexpr(4):
                    acc[i, m] = sums[m][i]
            prim.leave(empty + slot, lane)

        # The warps' sums meet in shared memory, once all have left it, and gate meets up.
        factors = self._factors(shrink * GROW, lane)
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        for m in cutlass.range_constexpr(tiles):
            for half in cutlass.range_constexpr(2):
                row = (warp * form.rows + 16 * m + 8 * half + lane // 4) * form.pitch
                place = prim.shared_address(scratch + (row + 2 * (lane % 4)))
                if cutlass.const_expr(form.pitch == COLUMNS) or 2 * (lane % 4) < form.pitch:
                    prim.store_shared(place, [acc[2 * half + i, m] * factors[i] for i in range(2)])
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        # A number per thread; neighbours have the two of a word, in the order of the instruction.
        items = cutlass.const_expr(form.hidden * form.columns)
        for piece in cutlass.range_constexpr(-(-items // THREADS)):
            item = cutlass.min(piece * THREADS + thread, Int32(items - 1))
            side, column, pair = item % 2, item // 2 % form.columns, item // 2 // form.columns
            row = pair // 16 * GROUP + pair % 4 * 8 + pair // 4 % 4 * 2 + side
            gate, up = Float32(0.0), Float32(0.0)
            for other in cutlass.range_constexpr(WARPS):
                from_ = (other * form.rows + row) * form.pitch + column
                gate += scratch[from_]
                up += scratch[from_ + form.hidden * form.pitch]
            mine = prim.situ(gate, up, form.beta, form.linear_beta)
            theirs = cute.arch.shuffle_sync_bfly(mine, 1)
            (word,) = prim.packed([
                Float32(cutlass.select_(side == 0, mine, theirs)),
                Float32(cutlass.select_(side == 0, theirs, mine)),
            ])  # fmt: skip
            if piece * THREADS + thread < items:
                for peer in cutlass.range_constexpr(form.parts // 2):
                    block = group * form.parts + side * (form.parts // 2) + peer
                    to = self._inbox(inbox, block, turn, column)
                    prim.deliver_word(to + (part * (form.hidden // 2) + pair) * 4, word)

    @cute.jit
    def _down(
        self,
        gains: cute.Tensor,
        slots: cute.Tensor,
        inbox: cute.Tensor,
        places: Any,
        barriers: Any,
        work: Any,
        turn: Int32,
        thread: Int32,
    ) -> None:
        """Second product of a unit and its results."""
        form = cutlass.const_expr(self.routed)
        ring, scratch = places
        full, empty = barriers
        table, members, count, part, group = work
        lane = thread % prim.WARP
        warp = cute.arch.make_warp_uniform(thread // prim.WARP)
        unit = table[2 * turn + 1]
        first = self.stages.first_down(turn, count, part)
        tile, side = warp % TILES, warp // TILES
        groups = cutlass.const_expr(form.inter // GROUP // 2)

        # A lane's two columns of the results.
        shares, starts = [], []
        for i in cutlass.range_constexpr(2):
            column = cutlass.min(lane % 4 * 2 + i, unit % 256 - 1)
            pair = members[unit // 256 + column]
            shares.append(prim.load_word(prim.address(gains, pair)).bitcast(Float32))
            starts.append(pair * form.latent)

        block = group * form.parts + part
        column = cutlass.min(lane // 4, Int32(form.columns - 1))
        at = self._inbox(inbox, block, turn, column) + (side * (groups * 16) + lane % 4 * 4) * 4
        seen = [prim.look(at + 64 * k) for k in range(groups)]
        read = [prim.wait_for(at + 64 * k, words, Uint32(LOOKS))[0] for k, words in enumerate(seen)]
        grow, shrink = prim.half_scale([word for words in read for word in words])
        right = [prim.packed([v * grow for v in prim.unpacked(words)], "f16") for words in read]
        factors = self._factors(shrink * GROW, lane)

        # One word of a lane's four of each 16 columns. Rows of an instruction do not meet, so every
        # eight lanes take another tile's, as that is another bank of shared memory.
        mine = (tile + lane // 8) % TILES
        matrix = ring + (2 * side * groups * PIECE_BYTES + lane * 16 + mine * 4)
        scale = ring + (form.weight_bytes + side * groups * PIECE + lane // 4 * 8 + mine * 2)

        # The halves of the columns meet in shared memory, once all have left it.
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        for chunk in cutlass.range(self.stages.downs(part), unroll=1):
            slot = self.stages.taken(full, first + chunk)
            stage = slot * form.stage_bytes
            words = [
                [
                    prim.load_shared_word(matrix + (stage + (2 * k + i) * PIECE_BYTES))
                    for i in (0, 1)
                ]
                for k in range(groups)
            ]
            by = [
                [
                    prim.load_scale(prim.shared_address(scale + (stage + k * PIECE + half)))
                    for half in range(2)
                ]
                for k in range(groups)
            ]
            parts_ = self._products(words, right, by, [[Float32(0.0)] * 4 for _ in range(groups)])
            prim.leave(empty + slot, lane)
            acc = parts_[0]
            for one in parts_[1:]:
                acc = [a + b for a, b in zip(acc, one, strict=True)]
            made = [total * factors[i % 2] for i, total in enumerate(acc)]
            # In turn, so that one barrier is enough: who writes here again has met who read.
            place = scratch + ((chunk % 2 * TILES + tile) * prim.WARP + lane) * 4
            if side == 1:
                prim.store_shared(prim.shared_address(place), made)
            cute.arch.barrier(barrier_id=_EARLY + tile, number_of_threads=2 * prim.WARP)
            if side == 0:
                other = prim.floats(prim.load_shared(place))
                output = (self.stages.first_piece(part) + chunk) * PIECE + 16 * mine + lane // 4
                for i in cutlass.range_constexpr(4):
                    if lane % 4 * 2 + i % 2 < unit % 256:
                        out_at = prim.address(slots, starts[i % 2] + output + 8 * (i // 2))
                        value = (made[i] + other[i]) * shares[i % 2]
                        prim.store_words(out_at, [value.bitcast(Uint32)])
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)

        # All have read the hidden numbers. Their places are empty before this block sends more.
        words_ = cutlass.const_expr(form.columns * (form.inter // 8))
        for piece in cutlass.range_constexpr(-(-words_ // THREADS)):
            word = piece * THREADS + thread
            if word < words_:
                held = self._inbox(inbox, block, turn, Int32(0)) + word * 16
                prim.store(held, [Uint32(prim.ABSENT)] * 4)
                prim.fence()


class RepackedStages(Stages):
    """The ring of one form. A block has one piece of gate and one of up rows per 16 columns of w13,
    and its share of w2's pieces, some blocks one more than others."""

    form: Repacked

    def pieces(self, w: Any, rows: int, bytes_: int, box: int, width: int) -> tuple[Any, Any]:
        """What TMA takes a tensor with: `rows` of an expert, each of `bytes_`, in boxes of `box`
        rows and `width` bytes."""
        numbers = bytes_ // 2
        whole = cute.make_tensor(
            cute.recast_ptr(w.iterator, dtype=BFloat16),
            cute.make_layout((self.form.experts * rows, numbers), stride=(numbers, 1)),
        )
        layout = cute.make_layout((box, width // 2), stride=(width // 2, 1))
        load = cpasync.CopyBulkTensorTileG2SOp()
        made: tuple[Any, Any] = cpasync.make_tiled_tma_atom(load, whole, layout, (box, width // 2))
        return made

    def downs(self, part: Int32) -> Any:
        """Pieces of w2 of a block: stages that hold them."""
        each, more = divmod(self.form.latent // PIECE, self.form.parts)
        return cutlass.select_(part < more, Int32(each + 1), Int32(each))

    def first_piece(self, part: Int32) -> Any:
        """The first of them."""
        each, more = divmod(self.form.latent // PIECE, self.form.parts)
        return part * each + cutlass.min(part, Int32(more))

    def first_up(self, turn: Int32, part: Int32) -> Int32:  # type: ignore[override]
        """See `Stages`."""
        return turn * self.form.up_chunks + cutlass.max(turn - 1, Int32(0)) * self.downs(part)

    def first_down(self, unit: Int32, count: Int32, part: Int32) -> Int32:  # type: ignore[override]
        """See `Stages`."""
        return cutlass.min(unit + 2, count) * self.form.up_chunks + unit * self.downs(part)

    @cute.jit
    def feed(self, ups: Any, downs: Any, ring: Any, barriers: Any, work: Any) -> None:
        """The producing warp: one thread fills stage after stage, in the order of use."""
        form = cutlass.const_expr(self.form)
        full, empty = barriers
        table, count, part = work
        groups = cutlass.const_expr(form.inter // GROUP)
        behind = ring + form.weight_bytes
        ups_ = self._boxes(ups, ring, behind, (form.up_steps, WARPS), 2)
        downs_ = self._boxes(downs, ring, behind, (form.inter // STEP, groups), 1)
        with cute.arch.elect_one():
            for turn in cutlass.range(count + 1, unroll=1):
                if turn < count:
                    expert = table[2 * turn]
                    for chunk in cutlass.range(form.up_chunks, unroll=1):
                        slot = self._free(
                            full, empty, self.first_up(turn, part) + chunk, form.up_bytes
                        )
                        row = expert * form.up_chunks + chunk
                        for half in cutlass.range_constexpr(2):
                            self._take(ups_, row, half * form.parts + part, half, slot, full)
                if turn > 0:
                    expert = table[2 * turn - 2]
                    for chunk in cutlass.range(self.downs(part), unroll=1):
                        first = self.first_down(turn - 1, count, part)
                        slot = self._free(full, empty, first + chunk, form.down_bytes)
                        piece = self.first_piece(part) + chunk
                        self._take(downs_, expert, piece, 0, slot, full)

    def _take(self, boxes: Any, row: Any, column: Any, half: int, slot: Any, full: Any) -> None:
        """Weights and scales of one piece, on their way to one stage."""
        for atom, shared, whole in boxes:
            cute.copy(
                atom,
                whole[None, row, column],
                shared[None, half, slot],
                tma_bar_ptr=full + slot,
                cache_policy=Int64(prim.EVICT_FIRST),
            )

    def _boxes(self, sources: Any, ring: Any, behind: Any, rows: Any, count: int) -> list[Any]:
        """Boxes of weights and of scales in the ring and in memory, as TMA takes them."""
        atom, whole, scale_atom, scales = sources
        return [
            (one, *self._split(one, tensor, at, height, width, count))
            for one, tensor, at, height, width in (
                (atom, whole, ring, rows[0], PIECE_BYTES // 2),
                (scale_atom, scales, behind, rows[1], PIECE // 2),
            )
        ]

    def _split(
        self, atom: Any, whole: Any, at: Any, rows: int, numbers: int, count: int
    ) -> tuple[Any, Any]:
        layout = cute.make_layout(
            (rows, numbers, count, self.form.stages),
            stride=(numbers, 1, rows * numbers, self.form.stage_bytes // 2),
        )
        held = cute.make_tensor(cute.recast_ptr(at, dtype=BFloat16), layout)
        made: tuple[Any, Any] = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(held, 0, 2),
            cute.group_modes(cute.local_tile(whole, (rows, numbers), (None, None)), 0, 2),
        )  # fmt: skip
        return made
