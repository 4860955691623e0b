"""Which experts a block of the routed experts works on, for which tokens.

Owns: pairs of token and expert sorted by expert, cut into units, dealt to crews. Does not own: what
is done with a unit. Read by: `moe.kernel.experts`; needs CuTe DSL and nothing else.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.moe.form import COLUMNS, WARPS, Routed

THREADS = WARPS * prim.WARP
"""That multiply."""
ALL = THREADS + prim.WARP
"""Of a block."""


class Plan:
    """The work of one form."""

    def __init__(self, form: Routed) -> None:
        self.form = form

    @cute.jit
    def sort(
        self,
        ids: cute.Tensor,
        group: Int32,
        thread: Int32,
        counts: cute.Pointer,
        table: cute.Pointer,
        members: cute.Pointer,
    ) -> Int32:
        """Sort pairs by expert: this crew's units into `table` (expert; first member and how
        many), everybody's pairs into `members`. Returns how many units are this crew's.

        Every block does this for itself: it takes less time than another launch. `counts` holds
        zeros, one per expert and one for pairs of none.
        """
        form = cutlass.const_expr(self.form)
        lane, warp = thread % prim.WARP, thread // prim.WARP
        turns = cutlass.const_expr(-(-form.pairs // ALL))
        experts, ranks = [], []
        for turn in cutlass.range_constexpr(turns):
            pair = cutlass.min(turn * ALL + thread, Int32(form.pairs - 1))
            experts.append(prim.load_word(prim.address(ids, pair)).bitcast(Int32))
        for turn in cutlass.range_constexpr(turns):
            inside = turn * ALL + thread < form.pairs
            one = experts[turn]
            one = cutlass.select_(inside, one, Int32(form.experts))
            one = cutlass.select_(one < 0, Int32(form.experts), one)
            experts[turn] = cutlass.min(one, Int32(form.experts))
            ranks.append(prim.add_shared(counts + experts[turn], Int32(1)))
        cute.arch.sync_threads()

        # Where units and members of each expert begin: prefix sums of both in one word.
        each = cutlass.const_expr(-(-form.experts // THREADS))
        held = []
        mine = Int32(0)
        for i in cutlass.range_constexpr(each):
            expert = cutlass.min(thread * each + i, Int32(form.experts))
            found = counts[expert]
            found = cutlass.select_(expert < form.experts, found, Int32(0))
            held.append(found)
            mine = mine + (found + COLUMNS - 1) // COLUMNS * 65536 + found
        scanned = mine
        for step in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(scanned, 1 << step, mask_and_clamp=0)
            scanned = scanned + cutlass.select_(lane >= (1 << step), other, Int32(0))
        sums = counts + (form.experts + 1)
        unsorted = sums + (WARPS + 1)
        if lane == prim.WARP - 1:
            sums[warp] = scanned
        cute.arch.sync_threads()
        total = Int32(0)
        start = scanned - mine
        for other_warp in cutlass.range_constexpr(WARPS):
            found = sums[other_warp]
            start = start + cutlass.select_(other_warp < warp, found, Int32(0))
            total = total + found
        for i in cutlass.range_constexpr(each):
            expert = thread * each + i
            first, unit = start % 65536, start // 65536
            if expert < form.experts:
                counts[expert] = first
                for piece in cutlass.range((held[i] + COLUMNS - 1) // COLUMNS, unroll=1):
                    number = unit + piece
                    if number % form.crews == group:
                        place = number // form.crews * 2
                        size = cutlass.min(held[i] - piece * COLUMNS, Int32(COLUMNS))
                        table[place] = expert
                        table[place + 1] = (first + piece * COLUMNS) * 256 + size
            start = start + (held[i] + COLUMNS - 1) // COLUMNS * 65536 + held[i]
        if thread == 0:
            counts[form.experts] = total % 65536
        cute.arch.sync_threads()
        # As they came, and then in their order: the blocks of a crew must agree on columns.
        for turn in cutlass.range_constexpr(turns):
            if experts[turn] < form.experts:
                found_at = counts[experts[turn]] + ranks[turn]
                unsorted[found_at] = turn * ALL + thread
        cute.arch.sync_threads()
        for turn in cutlass.range_constexpr(turns):
            if experts[turn] < form.experts:
                pair = turn * ALL + thread
                begin, end = counts[experts[turn]], counts[experts[turn] + 1]
                place = begin
                for other in cutlass.range(begin, end, unroll=1):
                    place = place + cutlass.select_(unsorted[other] < pair, Int32(1), Int32(0))
                members[place] = pair
        cute.arch.sync_threads()
        return (total // 65536 - group + form.crews - 1) // form.crews
