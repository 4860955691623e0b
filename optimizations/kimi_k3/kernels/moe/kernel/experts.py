"""Routed experts with MXFP4 weights on a GPU: the experts in use read once, as the checkpoint has
them.

Owns: the launch, products, activation, exchange of hidden numbers. Does not own: routing, who works
on what (`plan`), weights on their way (`stages`), the sum over a token's experts (`finalize`), how
the work is cut (`form`). Read by: `moe.launch`, `kernels.compiled`; needs CuTe DSL and nothing
else.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.moe.form import (
    AHEAD,
    COLUMNS,
    DOWN_ROWS,
    FOLD,
    GROUP,
    LINE,
    LOOKS,
    PARTS,
    WARPS,
    Routed,
)
from kimi_k3.kernels.moe.kernel.plan import ALL, THREADS, Plan
from kimi_k3.kernels.moe.kernel.stages import Stages

ORDER = (0, 4, 2, 6, 1, 5, 3, 7)
"""In which `prim.nibbles` has a word's numbers, and so activations are taken."""
GROW = 2.0**14
"""Of `prim.nibbles`."""


class Experts:
    """z [B, L] BF16, ids [B, K] int32 (others than 0..E-1: nothing is read), gains [B, K] FP32; w13
    [E, 2I, L/2], gate rows first, and w2 [E, L, I/2] of FP4 pairs with one E8M0 scale per 32
    columns, s13 [E, 2I, L/32] and s2 [E, L, I/32] -> slots [B, K, L] FP32: each expert's output
    times its gain.

    Tokens of an expert form units of up to eight, the columns of a matrix instruction m16n8k16
    whose 16 rows are weights. A crew of eight blocks takes a unit: each block an eighth of w13's
    rows and, after the blocks have sent each other their hidden numbers, an eighth of w2's. The
    first product of the next unit is made before the second of the last, so nobody waits for that
    exchange. One thread of a block streams weights through a ring of stages by TMA.

    Hidden numbers go through `inbox` [blocks, 4, columns, I/2] int32 as through the mailboxes of
    `oproj`: a word of ones is an empty place, readers empty what they have read. All blocks must
    run at once: there are no more of them than fit.

    Weights become FP16 in registers, exactly; scales multiply FP32 sums of 32 products. Activations
    become FP16 by a power of two of each warp and token, exactly too but for what is 2**-32 times
    the warp's largest. Hidden numbers are rounded to BF16, nothing else is. Columns do not meet, so
    a token's bits do not depend on its neighbours, and sums go the same way every time.
    """

    form: tuple[Any, ...]

    def __init__(self, form: Routed) -> None:
        self.form = form
        self.routed = form
        self.plan, self.stages = Plan(form), Stages(form)

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.routed
        experts, latent, inter = form.experts, form.latent, form.inter
        pairs = form.batch, form.top_k
        return {
            "z": Argument("bfloat16", (form.batch, latent)),
            "ids": Argument("int32", pairs),
            "gains": Argument("float32", pairs),
            "w13": Argument("uint8", (experts, 2 * inter, latent // 2), "static"),
            "s13": Argument("uint8", (experts, 2 * inter, latent // GROUP), "static"),
            "w2": Argument("uint8", (experts, latent, inter // 2), "static"),
            "s2": Argument("uint8", (experts, latent, inter // GROUP), "static"),
            "slots": Argument("float32", (*pairs, latent)),
            "inbox": Argument("int32", form.inbox, "own"),
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
        form = self.routed
        boxes = self.stages.boxes
        up_atom, up = boxes(w13, form.experts * 2 * form.inter, form.latent // 4, form.hidden)
        folded = form.experts * form.latent // FOLD
        down_atom, down = boxes(w2, folded, FOLD * form.inter // 4, DOWN_ROWS // FOLD)
        self.kernel(up_atom, up, down_atom, down, z, ids, gains, s13, s2, slots, inbox).launch(
            grid=(PARTS, form.crews, 1),
            block=(ALL, 1, 1),
            min_blocks_per_mp=form.resident,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self,
        up_atom: cute.CopyAtom,
        up: cute.Tensor,
        down_atom: cute.CopyAtom,
        down: cute.Tensor,
        z: cute.Tensor,
        ids: cute.Tensor,
        gains: cute.Tensor,
        s13: cute.Tensor,
        s2: cute.Tensor,
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
        scaled = memory.allocate_array(Int64, 2)
        ring = memory.allocate(form.stages * form.stage_bytes, 1024)
        scales = memory.allocate(form.scales, 128)
        scratch = memory.allocate_array(Float32, form.scratch, byte_alignment=128)
        table = memory.allocate_array(Int32, 2 * form.units)
        members = memory.allocate_array(Int32, form.pairs)

        cute.arch.griddepcontrol_launch_dependents()
        if thread == 0:
            for slot in cutlass.range_constexpr(form.stages):
                cute.arch.mbarrier_init(full + slot, 1)
                cute.arch.mbarrier_init(empty + slot, WARPS)
            cute.arch.mbarrier_init(scaled, 1)
            cute.arch.mbarrier_init(scaled + 1, WARPS)
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
                (up_atom, up, down_atom, down, s13, s2), (ring, scales), (full, empty, scaled),
                (table, count, part),
            )  # fmt: skip
        else:
            for turn in cutlass.range(count + 1, unroll=1):
                if turn < count:
                    self._up(
                        z, inbox, (ring, scales, scratch), (full, empty, scaled),
                        (table, members, count, part, group), turn, thread,
                    )  # fmt: skip
                if turn > 0:
                    self._down(
                        gains, slots, inbox, (ring, scratch), (full, empty),
                        (table, members, count, part, group), turn - 1, thread,
                    )  # fmt: skip

    def _inbox(self, inbox: Any, block: Any, turn: Int32, column: Any) -> Int64:
        """Where a block finds a unit's hidden numbers of one token."""
        form = self.routed
        row = (block * AHEAD + turn % AHEAD) * form.columns + column
        return prim.address(inbox, row * (form.inter // 2))

    def _products(self, pairs: Any, rights: Any, scales: Any, sums: Any) -> list[Any]:
        """sums[n] plus 16 rows of one group of 32 columns, a word of eight weights per lane and
        row in pairs[n], times the same columns of eight tokens.

        Written as a pipeline, because instructions stay about where they are written: while one
        product is under way, the next one's weights are unpacked.
        """
        made: list[Any] = []
        for step in range(len(pairs) + 2):
            if step >= 2:
                by = scales[step - 2]
                by = (by[0], by[0], by[1], by[1])
                each = zip(sums[step - 2], made[step - 2][0], by, strict=True)
                sums[step - 2] = [total + one * s for total, one, s in each]
            if step < len(pairs):
                left, next_ = self._operands(pairs[step])
                zero = (Float32(0.0),) * 4
                made.append((prim.multiply_add(left, rights[step][0:2], zero, "f16"), next_))
            if 1 <= step <= len(pairs):
                first, left = made[step - 1]
                made[step - 1] = (prim.multiply_add(left, rights[step - 1][2:4], first, "f16"),)
        return sums

    def _operands(self, words: Any) -> tuple[Any, Any]:
        """Of both instructions, from a word of rows l // 4 and of rows 8 + l // 4, for lane l."""
        a, b = (prim.nibbles(word) for word in words)
        return (a[0], b[0], a[1], b[1]), (a[2], b[2], a[3], b[3])

    def _factors(self, mine: Float32, lane: Int32) -> list[Float32]:
        """Of the two columns whose results a lane holds; a lane's own is of the column whose
        operands it holds."""
        return [cute.arch.shuffle_sync(mine, lane % 4 * 8 + 4 * i) for i in range(2)]

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
        ring, scales, scratch = places
        full, empty, scaled = barriers
        table, members, _, part, group = work
        lane = thread % prim.WARP
        warp = cute.arch.make_warp_uniform(thread // prim.WARP)
        unit = table[2 * turn + 1]
        first = self.stages.first_up(turn)

        # A warp has every eighth group of columns, one of each stage. A lane holds 8 of the 32
        # activations of one token; columns without a token repeat the last.
        column = cutlass.min(lane // 4, unit % 256 - 1)
        token = members[unit // 256 + column] // form.top_k
        offset = token * form.latent + warp * GROUP + lane % 4 * 8
        at = prim.address(z, offset)
        step = cutlass.const_expr(WARPS * GROUP * 2)
        turns = cutlass.const_expr(form.up_chunks)
        # Once through for their size; the second time they are in L1.
        held: list[Any] = []
        for index in cutlass.range_constexpr(turns):
            held += prim.load(at + index * step)
        grow, shrink = prim.half_scale(held)
        raw = cute.make_rmem_tensor(4, Uint32)
        for i in cutlass.range_constexpr(4):
            raw[i] = held[i]
        tiles = cutlass.const_expr(form.rows // 16)
        acc = cute.make_rmem_tensor((4, tiles), Float32)
        acc.fill(0.0)
        matrix = (
            prim.shared_address(ring) + lane * LINE + (warp ^ (lane % 8)) * 16
        )  # row `lane`; TMA exchanges the places of a row by its number
        pitch = cutlass.const_expr(form.latent // GROUP)
        scale = prim.shared_address(scales) + lane // 4 * pitch + warp

        cute.arch.mbarrier_wait(scaled, turn % 2)
        for chunk in cutlass.range(turns, unroll=1):
            values = prim.unpacked(tuple(raw[i] for i in range(4)))
            right = prim.packed([values[i] * grow for i in ORDER], "f16")
            words = prim.load(at + cutlass.min(chunk + 1, Int32(turns - 1)) * step)
            for i in cutlass.range_constexpr(4):
                raw[i] = words[i]
            by = [
                [
                    prim.load_scale(scale + (16 * m + 8 * half) * pitch + WARPS * chunk)
                    for half in range(2)
                ]
                for m in range(tiles)
            ]
            slot = self.stages.taken(full, first + chunk)
            rows = [
                prim.load_matrices(matrix + slot * form.stage_bytes + m * (32 * LINE))
                for m in range(tiles // 2)
            ]
            sums = self._products(
                [rows[m // 2][2 * (m % 2) : 2 * (m % 2) + 2] for m in range(tiles)],
                [right] * tiles, by, [[acc[i, m] for i in range(4)] for m in range(tiles)],
            )  # fmt: skip
            for m in cutlass.range_constexpr(tiles):
                for i in cutlass.range_constexpr(4):
                    acc[i, m] = sums[m][i]
            prim.leave(empty + slot, lane)
        prim.leave(scaled + 1, lane)

        # The warps' sums meet in shared memory, once all have left it, and gate meets up.
        factors = self._factors(shrink * GROW, lane)
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        for m in cutlass.range_constexpr(tiles):
            for half in cutlass.range_constexpr(2):
                row = (warp * form.rows + 16 * m + 8 * half + lane // 4) * COLUMNS
                place = prim.shared_address(scratch + (row + 2 * (lane % 4)))
                if cutlass.const_expr(form.columns > 1) or lane % 4 == 0:
                    prim.store_shared(place, [acc[2 * half + i, m] * factors[i] for i in range(2)])
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        # A number per thread; neighbours have the two of a word, in the order of `ORDER`.
        items = cutlass.const_expr(form.hidden * form.columns)
        for piece in cutlass.range_constexpr(-(-items // THREADS)):
            item = cutlass.min(piece * THREADS + thread, Int32(items - 1))
            side, column, pair = item % 2, item // 2 % form.columns, item // 2 // form.columns
            row = pair // 4 * 8 + pair % 2 * 2 + pair % 4 // 2 + 4 * side
            gate, up = Float32(0.0), Float32(0.0)
            for other in cutlass.range_constexpr(WARPS):
                from_ = (other * form.rows + row) * COLUMNS + column
                gate += scratch[from_]
                up += scratch[from_ + form.hidden * COLUMNS]
            mine = prim.situ(gate, up, form.beta, form.linear_beta)
            theirs = cute.arch.shuffle_sync_bfly(mine, 1)
            (word,) = prim.packed([
                Float32(cutlass.select_(side == 0, mine, theirs)),
                Float32(cutlass.select_(side == 0, theirs, mine)),
            ])  # fmt: skip
            if piece * THREADS + thread < items:
                for peer in cutlass.range_constexpr(PARTS // 2):
                    block = group * PARTS + side * (PARTS // 2) + peer
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
        first = self.stages.first_down(turn, count)
        tile, side = warp % 4, warp // 4
        groups = cutlass.const_expr(form.inter // GROUP // 2)

        # A lane's two columns of the results.
        shares, starts = [], []
        for i in cutlass.range_constexpr(2):
            column = cutlass.min(lane % 4 * 2 + i, unit % 256 - 1)
            pair = members[unit // 256 + column]
            shares.append(prim.load_word(prim.address(gains, pair)).bitcast(Float32))
            starts.append(pair * form.latent)

        block = group * PARTS + part
        column = cutlass.min(lane // 4, Int32(form.columns - 1))
        at = self._inbox(inbox, block, turn, column) + (side * (groups * 16) + lane % 4 * 4) * 4
        seen = [prim.look(at + 64 * k) for k in range(groups)]
        read = [prim.wait_for(at + 64 * k, words, Uint32(LOOKS))[0] for k, words in enumerate(seen)]
        grow, shrink = prim.half_scale([word for words in read for word in words])
        right = [prim.packed([v * grow for v in prim.unpacked(words)], "f16") for words in read]
        factors = self._factors(shrink * GROW, lane)

        # Where the rows lie that a lane names: two rows of w2 make one of whole lines.
        line = 16 * tile + lane // 8 % 2 * 8 + lane % 8
        base, matrices = prim.shared_address(ring), []
        for step in cutlass.range_constexpr(groups // 2):
            offset = (line % FOLD) * (form.inter // 2) + (
                side * groups + 2 * step + lane // 16
            ) * 16
            box, place = offset // LINE, offset % LINE // 16
            folded = line // FOLD
            box_at = box * (DOWN_ROWS // FOLD * LINE) + folded * LINE
            matrices.append(base + box_at + (place ^ (folded % 8)) * 16)
        pitch = cutlass.const_expr(form.inter // GROUP)
        scale = base + form.weight_bytes + (16 * tile + lane // 4) * pitch + side * groups

        # Both halves of the columns meet in shared memory, once all have left it.
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)
        for chunk in cutlass.range(form.down_chunks, unroll=1):
            slot = self.stages.taken(full, first + chunk)
            rows = [
                prim.load_matrices(matrices[step] + slot * form.stage_bytes)
                for step in range(groups // 2)
            ]
            by = [
                [
                    prim.load_scale(scale + slot * form.stage_bytes + 8 * half * pitch + k)
                    for half in range(2)
                ]
                for k in range(groups)
            ]
            parts_ = self._products(
                [rows[k // 2][2 * (k % 2) : 2 * (k % 2) + 2] for k in range(groups)],
                right, by, [[Float32(0.0)] * 4 for _ in range(groups)],
            )  # fmt: skip
            acc = parts_[0]
            for one in parts_[1:]:
                acc = [a + b for a, b in zip(acc, one, strict=True)]
            place = ((chunk * WARPS + warp) * prim.WARP + lane) * 4
            made = [total * factors[i % 2] for i, total in enumerate(acc)]
            prim.store_shared(prim.shared_address(scratch + place), made)
            prim.leave(empty + slot, lane)
        cute.arch.barrier(barrier_id=1, number_of_threads=THREADS)

        # All have read the hidden numbers. Their places are empty before this block sends more.
        words = cutlass.const_expr(form.columns * (form.inter // 8))
        for piece in cutlass.range_constexpr(-(-words // THREADS)):
            word = piece * THREADS + thread
            if word < words:
                mine = self._inbox(inbox, block, turn, Int32(0)) + word * 16
                prim.store(mine, [Uint32(prim.ABSENT)] * 4)
                prim.fence()
        tiles = cutlass.const_expr(form.outs // 16)
        for piece in cutlass.range(-(-tiles // WARPS), unroll=1):
            index = piece * WARPS + warp
            if index < tiles:
                pair_at = scratch + ((index // 4 * WARPS + index % 4) * prim.WARP + lane) * 4
                one = prim.floats(prim.load_shared(pair_at))
                other = prim.floats(prim.load_shared(pair_at + 4 * prim.WARP * 4))
                output = part * form.outs + 16 * index + lane // 4
                for i in cutlass.range_constexpr(4):
                    if lane % 4 * 2 + i % 2 < unit % 256:
                        out_at = prim.address(slots, starts[i % 2] + output + 8 * (i // 2))
                        value = (one[i] + other[i]) * shares[i % 2]
                        prim.store_words(out_at, [value.bitcast(Uint32)])
