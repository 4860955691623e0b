"""Kimi delta attention on a GPU: everything between two projections in one launch.

Owns: device code. Does not own: which state belongs to which request, how heads are cut (`form`).
Read by: `kda.launch`, `kernels.compiled`; needs CuTe DSL and nothing else.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, Uint32
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.kda.form import RESIDENT, TAPS, WIDTH, Heads

LENGTH_EPS = 1e-6
"""Added to the sum of squares of a query or key."""
NORM_EPS = 1e-5
"""Of the output norm: fixed by the released model, whatever `rms_norm_eps` says."""


class Kda:
    """projected [q B, pitch] BF16, token by token: q | k | v | gate, each H x 128, decay gate 128,
    beta H. conv [slots, 3, 3 H 128] BF16, oldest first; recurrent [slots, H, V, K] FP32; both
    updated in place; of pools whose slots lie apart, the argument is slot 0 alone. source [B] and
    target [q, B] int32. taps [4, 3 H 128], decay_bias [H, 128], decay_speed [H] and norm [128]
    FP32, decay_up [H 128, 128] BF16 -> y [q B, H 128] BF16.

    A request starts from slot source[b]; its states after token t go to slot target[t, b]. A source
    of 0 or less is nobody's: its outputs are 0 and nothing is written. So is a target for writing.

    One cluster per head and request, a block's share of the state in registers from first to last
    token. FP32 from the convolution to the store; BF16 roundings: the decay gate's raw value, the
    convolution's history and the output.

    States, histories and slots are read before the grid-dependency wait. That is sound where no
    kernel of the same chain of dependent launches writes them: one launch per layer and step, and
    steps that begin in stream order, as a replayed graph does.
    Sources: Kimi K3 technical report (arXiv 2607.24653), section 2.1; Kimi Linear (2510.26692).
    """

    def __init__(self, form: Heads) -> None:
        if form.warps not in (4, 8) or form.rows % form.warps or form.warp_rows > 16:
            raise ValueError(f"{form.parts} parts and {form.warps} warps do not cut a head")
        self.form = form

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.form
        wide = form.heads * WIDTH
        rows = form.tokens * form.batch
        return {
            "projected": Argument("bfloat16", (rows, form.pitch)),
            "conv": Argument("bfloat16", (form.slots, TAPS - 1, 3 * wide), "own"),
            "recurrent": Argument("float32", (form.slots, form.heads, WIDTH, WIDTH), "own"),
            "source": Argument("int32", (form.batch,), "own"),
            "target": Argument("int32", (form.tokens, form.batch)),
            "taps": Argument("float32", (TAPS, 3 * wide), "static"),
            "decay_up": Argument("bfloat16", (wide, WIDTH), "static"),
            "decay_bias": Argument("float32", (form.heads, WIDTH), "static"),
            "decay_speed": Argument("float32", (form.heads,), "static"),
            "norm": Argument("float32", (WIDTH,), "static"),
            "y": Argument("bfloat16", (rows, wide)),
        }

    @cute.jit
    def __call__(
        self,
        projected: cute.Tensor,
        conv: cute.Tensor,
        recurrent: cute.Tensor,
        source: cute.Tensor,
        target: cute.Tensor,
        taps: cute.Tensor,
        decay_up: cute.Tensor,
        decay_bias: cute.Tensor,
        decay_speed: cute.Tensor,
        norm: cute.Tensor,
        y: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        form = self.form
        self.kernel(
            projected, conv, recurrent, source, target,
            taps, decay_up, decay_bias, decay_speed, norm, y,
        ).launch(
            grid=(form.parts, form.heads, form.batch),
            block=(form.warps * prim.WARP, 1, 1),
            cluster=(form.parts, 1, 1),
            min_blocks_per_mp=RESIDENT,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )  # fmt: skip

    @cute.kernel
    def kernel(
        self,
        projected: cute.Tensor,
        conv: cute.Tensor,
        recurrent: cute.Tensor,
        source: cute.Tensor,
        target: cute.Tensor,
        taps: cute.Tensor,
        decay_up: cute.Tensor,
        decay_bias: cute.Tensor,
        decay_speed: cute.Tensor,
        norm: cute.Tensor,
        y: cute.Tensor,
    ) -> None:
        form = cutlass.const_expr(self.form)
        wide = cutlass.const_expr(form.heads * WIDTH)
        count = cutlass.const_expr(form.warp_rows)
        thread, _, _ = cute.arch.thread_idx()
        part, head, request = cute.arch.block_idx()
        lane, warp = thread % prim.WARP, thread // prim.WARP

        memory = SmemAllocator()
        queries = memory.allocate_array(Float32, WIDTH)
        keys = memory.allocate_array(Float32, WIDTH)
        decays = memory.allocate_array(Float32, WIDTH)
        values = memory.allocate_array(Float32, form.rows)
        sums = memory.allocate_array(Float32, 4 * 4)
        squares = memory.allocate_array(Float32, 2 * form.parts * form.warps)
        barriers = memory.allocate_array(Int64, 3)
        up = memory.allocate_array(BFloat16, WIDTH * WIDTH, byte_alignment=128)

        cute.arch.griddepcontrol_launch_dependents()
        if thread == 0:
            for barrier in cutlass.range_constexpr(3):
                cute.arch.mbarrier_init(barriers + barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        if thread == 0:
            size = cutlass.const_expr(WIDTH * WIDTH * 2)
            cute.arch.mbarrier_arrive_and_expect_tx(barriers + 2, size)
            prim.fetch(up, prim.address(decay_up, head * (WIDTH * WIDTH)), size, barriers + 2)
        start = prim.load_word(prim.address(source, request)).bitcast(Int32)
        live = start > 0
        slot = cutlass.max(start, Int32(0))

        # Static weights of this thread: taps of channel `thread` of q and k and of its value row.
        channel = head * WIDTH + thread % WIDTH
        value = part * form.rows + thread % form.rows
        places = [channel, wide + channel, 2 * wide + head * WIDTH + value]
        filters = [[taps[t, place] for t in range(TAPS)] for place in places]
        decay_rows = cutlass.const_expr(WIDTH // form.warps)
        first = warp * decay_rows + lane // 16
        decayed = first + 2 * (lane % (decay_rows // 2))
        bias, speed = decay_bias[head, decayed], decay_speed[head]
        row = warp * count + lane % count
        gain = norm[part * form.rows + row]

        # Own state: this block's rows and the histories.
        history = [
            [prim.load_half(self._conv_at(conv, slot, t, place)) for t in range(TAPS - 1)]
            for place in places
        ]
        state = cute.make_rmem_tensor((4, count), Float32)
        state_row = head * WIDTH + part * form.rows + warp * count
        for i in cutlass.range_constexpr(count):
            held = prim.floats(prim.load(self._state_at(recurrent, slot, state_row + i, lane)))
            for j in cutlass.range_constexpr(4):
                state[j, i] = held[j]
        past = cute.make_rmem_tensor((TAPS - 1, 3), Float32)
        for c in cutlass.range_constexpr(3):
            for t in cutlass.range_constexpr(TAPS - 1):
                past[t, c] = history[c][t]

        # Every block's barriers must be set up before another block sends.
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()
        cute.arch.griddepcontrol_wait()
        cute.arch.mbarrier_wait(barriers + 2, 0)

        for token in cutlass.range(form.tokens, unroll=1):
            line = token * form.batch + request
            base = line * form.pitch
            inputs = [prim.load_half(prim.address(projected, base + at)) for at in places]
            low = prim.load(prim.address(projected, base + 4 * wide + lane % 16 * 8))
            strength = prim.load_half(prim.address(projected, base + 4 * wide + WIDTH + head))
            gate_at = base + 3 * wide + head * WIDTH + part * form.rows + row
            gate = prim.load_half(prim.address(projected, gate_at))
            goal = prim.load_word(prim.address(target, line)).bitcast(Int32)

            # 1. Convolution and SiLU; the history moves on.
            active = []
            for c in cutlass.range_constexpr(3):
                total = filters[c][TAPS - 1] * inputs[c]
                for t in cutlass.range_constexpr(TAPS - 1):
                    total = total + filters[c][t] * past[t, c]
                active.append(total * self._sigmoid(total))
                for t in cutlass.range_constexpr(TAPS - 2):
                    past[t, c] = past[t + 1, c]
                past[TAPS - 2, c] = inputs[c]
            query, key = active[0], active[1]
            if thread < WIDTH:
                queries[thread] = query
                keys[thread] = key
            if thread < form.rows:
                values[thread] = active[2]
            # 2. Lengths of query and key, and their product, per warp.
            pieces = prim.transposed_sums([query * query, key * key, query * key], lane)
            if warp < 4 and lane < 4:
                sums[warp * 4 + lane] = pieces

            # 3. Decay factors from the low-rank gate.
            narrow = prim.unpacked(low)
            products = [
                prim.dot(prim.unpacked(self._decay_row(up, first + 2 * i, lane)), narrow)
                for i in range(decay_rows // 2)
            ]
            raw = prim.rounded(prim.transposed_sums(products, lane, group=16))
            factor = cute.math.exp(form.lower_bound * self._sigmoid(speed * (raw + bias)))
            if lane % 16 < decay_rows // 2:
                decays[decayed] = factor
            cute.arch.sync_threads()

            lengths = []
            for i in cutlass.range_constexpr(3):
                total = sums[i]
                for other in cutlass.range_constexpr(1, 4):
                    total = total + sums[other * 4 + i]
                lengths.append(total)
            query_scale = prim.rsqrt(lengths[0] + LENGTH_EPS) * WIDTH**-0.5
            key_scale = prim.rsqrt(lengths[1] + LENGTH_EPS)
            overlap = lengths[2] * query_scale * key_scale

            # 4. Delta rule; both products read the old state.
            column = [4 * lane + j for j in range(4)]
            k = [keys[c] * key_scale for c in column]
            d = [decays[c] for c in column]
            q = [queries[c] * query_scale for c in column]
            recalled, read_out = [], []
            for i in cutlass.range_constexpr(count):
                recall, read = Float32(0.0), Float32(0.0)
                for j in cutlass.range_constexpr(4):
                    faded = state[j, i] * d[j]
                    state[j, i] = faded
                    recall = recall + faded * k[j]
                    read = read + faded * q[j]
                recalled.append(recall)
                read_out.append(read)
            both = prim.transposed_sums([*recalled, *read_out], lane)
            recall = cute.arch.shuffle_sync(both, lane % count)
            read = cute.arch.shuffle_sync(both, count + lane % count)
            beta = self._sigmoid(strength)
            update = beta * (values[row] - recall)
            out = read + update * overlap
            for i in cutlass.range_constexpr(count):
                change = cute.arch.shuffle_sync(update, i)
                for j in cutlass.range_constexpr(4):
                    state[j, i] = state[j, i] + change * k[j]

            # 5. Norm over the head's 128 outputs, which the cluster holds together.
            square = prim.warp_sum(cutlass.select_(lane < count, out * out, Float32(0.0)))
            # A block may be one token ahead of another, never two: hence two sides.
            places_ = cutlass.const_expr(form.parts * form.warps)
            side, barrier = token % 2 * places_, barriers + token % 2
            if thread == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, places_ * 4)
            if lane == 0:
                for peer in cutlass.range_constexpr(form.parts):
                    prim.send(peer, squares + side + part * form.warps + warp, square, barrier)
            cute.arch.mbarrier_wait(barrier, token // 2 % 2)
            total = squares[side]
            for other in cutlass.range_constexpr(1, places_):
                total = total + squares[side + other]
            scale = prim.rsqrt(total * (1.0 / WIDTH) + NORM_EPS)
            result = out * scale * gain * self._sigmoid(gate)
            kept = cutlass.select_(live, result, Float32(0.0))
            if lane < count:
                column_ = head * WIDTH + part * form.rows + row
                prim.store_half(prim.address(y, line * wide + column_), kept)

            # 6. States of this token. By now every block of the cluster has read the old ones.
            if live and goal > 0:
                for i in cutlass.range_constexpr(count):
                    prim.store_floats(
                        self._state_at(recurrent, goal, state_row + i, lane),
                        [state[j, i] for j in range(4)],
                    )
                for c in cutlass.range_constexpr(3):
                    mine = thread < WIDTH and part == 0
                    if cutlass.const_expr(c == 2):
                        mine = thread < form.rows
                    if mine:
                        for t in cutlass.range_constexpr(TAPS - 1):
                            prim.store_half(self._conv_at(conv, goal, t, places[c]), past[t, c])

    def _decay_row(self, up: Any, row: Any, lane: Any) -> tuple[Uint32, ...]:
        """This lane's 8 of the 128 weights of one decay channel."""
        return prim.load_shared(up + row * WIDTH + lane % 16 * 8)

    def _conv_at(self, conv: Any, slot: Any, tap: int, channel: Any) -> Int64:
        wide = 3 * self.form.heads * WIDTH
        pitch = self.form.conv_pitch or (TAPS - 1) * wide
        return prim.address(conv, Int64(slot) * pitch + tap * wide + channel)

    def _state_at(self, recurrent: Any, slot: Any, row: Any, lane: Any) -> Int64:
        pitch = self.form.state_pitch or self.form.heads * WIDTH * WIDTH
        return prim.address(recurrent, Int64(slot) * pitch + row * WIDTH + 4 * lane)

    def _sigmoid(self, x: Float32) -> Float32:
        return 1.0 / (1.0 + cute.math.exp(-x))
