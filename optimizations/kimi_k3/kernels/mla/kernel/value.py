"""Values of an MLA layer on a GPU: partial results merged, value projection and gate.

Owns: device code. Does not own: how the context was split. Read by: `mla.launch`; needs CuTe DSL
and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.mla.form import (
    GROUP,
    LATENT,
    PARTS,
    QUERY,
    ROW,
    VALUE,
    WARPS,
    Finish,
    pitch,
)

COLUMNS = 32
"""Columns of two matrix instructions: 16 bytes in each of four lanes."""
MINE = LATENT // PARTS
"""Latent columns of one block."""
OUTPUTS = VALUE // PARTS
"""Outputs of one warp, and those one block adds up and stores."""
LANES = MINE // 4
"""Lanes that hold one partial result's columns, four each."""
AT_ONCE = 16
"""Partial results on their way to a thread at the same time."""
WORDS = MINE // 2 + 16
"""Words from row to row of the merged latents: two rows' equal places in different banks."""
LOWEST = -3e38
"""Where running maxima start: finite, so that the difference of two is a number."""


class Value:
    """projected [R, pitch] BF16, of which the last H 128 columns are the gate; partial [P, R, H,
    512] and lse [P, R, H] FP32: results of P disjoint parts of a context, each over its own sum of
    exponentials, whose logarithm to base 2 is lse; value_up [H, 128, 512] BF16 -> y [R, H 128]
    BF16.

    Parts are splits, ranks of decode context parallelism, or both. A part with lse minus infinity
    is empty and its result is not used, whatever it holds; a token all of whose parts are empty is
    nobody's and its outputs are 0.

    One cluster of 8 blocks per head and 16 tokens. Every block merges 64 of the 512 columns, rounds
    them to BF16 and multiplies them with all 128 outputs; 16 outputs' partial sums go to each block
    of the cluster, which adds them up in the order of the blocks. FP32 sums, one more rounding at
    the store. Weights are in registers before the grid-dependency wait.
    Sources: Kimi K3 technical report (arXiv 2607.24653), section 2.1; FlashDecoding (Dao et al.,
    2023) for the merge.
    """

    def __init__(self, form: Finish) -> None:
        self.form = form

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.form
        partial = form.parts, form.rows, form.heads
        return {
            "projected": Argument("bfloat16", (form.rows, pitch(form.heads))),
            "partial": Argument("float32", (*partial, LATENT)),
            "lse": Argument("float32", partial),
            "value_up": Argument("bfloat16", (form.heads, VALUE, LATENT), "static"),
            "y": Argument("bfloat16", (form.rows, form.heads * VALUE)),
        }

    @cute.jit
    def __call__(
        self,
        projected: cute.Tensor,
        partial: cute.Tensor,
        lse: cute.Tensor,
        value_up: cute.Tensor,
        y: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self.kernel(projected, partial, lse, value_up, y).launch(
            grid=(PARTS, self.form.heads, self.form.groups),
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
        partial: cute.Tensor,
        lse: cute.Tensor,
        value_up: cute.Tensor,
        y: cute.Tensor,
    ) -> None:
        form = cutlass.const_expr(self.form)
        thread, _, _ = cute.arch.thread_idx()
        part, head, group = cute.arch.block_idx()
        lane = thread % prim.WARP
        warp = cute.arch.make_warp_uniform(thread // prim.WARP)
        row, four = lane // 4, lane % 4
        first = group * GROUP
        live = cutlass.min(form.rows - first, Int32(GROUP))

        memory = SmemAllocator()
        merged = memory.allocate_array(Float32, GROUP * MINE, byte_alignment=16)
        tops = memory.allocate_array(Float32, GROUP)
        totals = memory.allocate_array(Float32, GROUP)
        alive = memory.allocate_array(Float32, GROUP)
        latents = memory.allocate_array(Uint32, GROUP * WORDS, byte_alignment=16)
        sums = memory.allocate_array(Float32, PARTS * GROUP * OUTPUTS, byte_alignment=16)
        barriers = memory.allocate_array(Int64, 1)

        cute.arch.griddepcontrol_launch_dependents()
        if thread == 0:
            cute.arch.mbarrier_init(barriers, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        cute.arch.cluster_arrive_relaxed()
        first_weight = (head * VALUE + OUTPUTS * warp + row) * LATENT + MINE * part + 8 * four
        weights = [
            [
                prim.load_early(prim.address(value_up, first_weight + 8 * n * LATENT + COLUMNS * i))
                for i in range(MINE // COLUMNS)
            ]
            for n in range(OUTPUTS // 8)
        ]
        # Every block's barrier must be set up before another block sends.
        cute.arch.cluster_wait()
        cute.arch.griddepcontrol_wait()
        if thread == 0:
            size = live * (PARTS * OUTPUTS * 4)
            cute.arch.mbarrier_arrive_and_expect_tx(barriers, size)
        # The gate of what this thread will store: of token `mine`, outputs 2 `pair` and the next.
        mine, pair = thread // (OUTPUTS // 2) % GROUP, thread % (OUTPUTS // 2)
        output = head * VALUE + OUTPUTS * part + 2 * pair
        token = cutlass.min(first + mine, Int32(form.rows - 1))
        gate_at = token * pitch(form.heads) + QUERY + ROW + output
        gate = prim.load_word(prim.address(projected, gate_at))

        # 1. Merge: `spread` tokens at once, the parts of each over 16 / spread groups of lanes.
        spread = cutlass.const_expr(form.spread)
        step = cutlass.const_expr(GROUP // spread)
        team, quad = thread // LANES, thread % LANES
        at = cutlass.min(first + team % spread, Int32(form.rows - 1)) * form.heads + head
        state = cute.make_rmem_tensor((6,), Float32)
        state.fill(0.0)
        state[4] = Float32(LOWEST)
        chunks = cutlass.const_expr(-(-form.parts // (step * AT_ONCE)))
        for chunk in cutlass.range(chunks, unroll=1):
            held, found = [], []
            for i in cutlass.range_constexpr(min(AT_ONCE, -(-form.parts // step))):
                index = (chunk * AT_ONCE + i) * step + team // spread
                inside = index < form.parts
                place = cutlass.min(index, Int32(form.parts - 1)) * (form.rows * form.heads) + at
                own = prim.load_word(prim.address(lse, place)).bitcast(Float32)
                found.append(cutlass.select_(inside, own, Float32(-cutlass.Float32.inf)))
                column = Int64(place) * LATENT + MINE * part + 4 * quad
                held.append(prim.floats(prim.load(prim.address(partial, column))))
            top = state[4]
            for one in found:
                top = cute.arch.fmax(top, one)
            fade = prim.exp2(state[4] - top)
            state[4] = top
            state[5] = state[5] * fade
            for j in cutlass.range_constexpr(4):
                state[j] = state[j] * fade
            for one, values in zip(found, held, strict=True):
                share = prim.exp2(one - top)
                state[5] = state[5] + share
                for j in cutlass.range_constexpr(4):
                    # An empty part may hold anything.
                    value = cutlass.select_(share == 0.0, Float32(0.0), values[j])
                    state[j] = state[j] + share * value
        place = prim.shared_address(merged + team * MINE + 4 * quad)
        prim.store_shared(place, [state[j] for j in range(4)])
        if quad == 0:
            tops[team] = state[4]
            totals[team] = state[5]
        cute.arch.sync_threads()
        if team < spread:
            top = Float32(LOWEST)
            for other in cutlass.range_constexpr(step):
                top = cute.arch.fmax(top, tops[team + spread * other])
            total = Float32(0.0)
            sum_ = [Float32(0.0)] * 4
            for other in cutlass.range_constexpr(step):
                there = team + spread * other
                share = prim.exp2(tops[there] - top)
                total = total + share * totals[there]
                values = prim.floats(prim.load_shared(merged + there * MINE + 4 * quad))
                sum_ = [a + share * b for a, b in zip(sum_, values, strict=True)]
            over = cutlass.select_(total == 0.0, Float32(0.0), 1.0 / total)
            place = prim.shared_address(latents + team * WORDS + 2 * quad)
            prim.store_shared(place, prim.packed([value * over for value in sum_]))
            if quad == 0:
                alive[team] = total
        cute.arch.sync_threads()

        # 2. This block's columns of the value projection; 16 outputs to every block.
        halves = cutlass.const_expr(1 if form.rows <= 8 else 2)
        for n in cutlass.range_constexpr(OUTPUTS // 8):
            acc: Sequence[Float32] = [Float32(0.0)] * 4
            for i in cutlass.range_constexpr(MINE // COLUMNS):
                upper = latents + row * WORDS + (COLUMNS * i + 8 * four) // 2
                lower = prim.load_shared(upper + 8 * WORDS) if halves == 2 else [Uint32(0)] * 4
                acc = prim.multiply_add_32(prim.load_shared(upper), lower, weights[n][i], acc)
            for half in cutlass.range_constexpr(halves):
                if row + 8 * half < live:
                    to = (part * GROUP + row + 8 * half) * OUTPUTS + 8 * n + 2 * four
                    made = acc[2 * half : 2 * half + 2]
                    prim.send_words(warp, sums + to, made, barriers)
        cute.arch.mbarrier_wait(barriers, 0)

        # 3. Sums of the blocks, gated.
        if thread < GROUP * OUTPUTS // 2 and mine < live:
            low, high = Float32(0.0), Float32(0.0)
            for other in cutlass.range_constexpr(PARTS):
                there = (other * GROUP + mine) * OUTPUTS + 2 * pair
                low, high = low + sums[there], high + sums[there + 1]
            gates = prim.unpacked((gate,))
            word = prim.packed([low * self._sigmoid(gates[0]), high * self._sigmoid(gates[1])])[0]
            word = cutlass.select_(alive[mine] == 0.0, Uint32(0), word)
            goal = token * (form.heads * VALUE) + output
            prim.store_words(prim.address(y, goal), [word])

    def _sigmoid(self, x: Float32) -> Float32:
        return 1.0 / (1.0 + cute.math.exp(-x))
