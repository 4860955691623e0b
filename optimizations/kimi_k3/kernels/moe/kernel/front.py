"""Into the experts on GPUs, two launches: every rank's rows of router and latent down-projection to
all ranks, and the choice of experts.

Owns: device code. Does not own: mailboxes (`oproj.mailbox`), how the map is cut (`launch`). Read
by: `moe.launch`, `kernels.compiled`; needs CuTe DSL and nothing else.

The exchange is that of `oproj.kernel`: data is its own flag, two halves take turns. A rank's row is
its logits in FP32, then its latent numbers in BF16. An FP32 word of all ones, an empty place, is a
NaN that no sum gives either; whoever sends makes sure.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass.cute.arch import inline_ptx
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument
from kimi_k3.kernels.moe.form import Choice
from kimi_k3.kernels.oproj.form import TURN, Exchange
from kimi_k3.kernels.oproj.kernel import Publish
from kimi_k3.kernels.projection.form import Map

_SENT, _NEXT, _FAILED = range(TURN)
VECTOR = 8
EACH = 4
"""Experts of a thread."""
NAN = 0x7FFFFFFF
EPS = 1e-20
"""Keeps the weights finite where every chosen score underflows."""


class PublishFront(Publish):
    """x [B, D] and w [E/R + L/R, D] BF16 of one rank -> its logits and latent numbers in every
    rank's mailbox, whose rows hold 2 E/R + L/R BF16."""

    def __init__(self, form: Map, exchange: Exchange, experts: int) -> None:
        if form.rows % VECTOR or form.outputs % VECTOR or experts % VECTOR:
            raise ValueError(f"{form} has pieces with fewer than {VECTOR} rows")
        if form.outputs + experts != exchange.hidden or form.batch > exchange.capacity:
            raise ValueError(f"{form} with {experts} experts does not fill rows of {exchange}")
        super(Publish, self).__init__(form)
        self.form = (*form, *exchange, experts)
        self.exchange = exchange
        self.experts = experts

    @cute.jit
    def _store(
        self, partial: cute.Pointer, out: Any, place: Any, block: Int32, thread: Int32
    ) -> None:
        """Add the warps' sums up, eight rows per thread, and deliver them."""
        form = cutlass.const_expr(self.map)
        exchange = cutlass.const_expr(self.exchange)
        each = cutlass.const_expr(form.pitch * form.held_batch)
        threads = cutlass.const_expr(form.warps * prim.WARP)
        pieces = cutlass.const_expr(form.rows // VECTOR)
        half, mailboxes = place
        skipped = half * cutlass.const_expr(exchange.ranks * exchange.capacity)
        for round_ in cutlass.range(-(-(pieces * form.batch) // threads), unroll=1):
            index = round_ * threads + thread
            column, row = index // pieces, index % pieces * VECTOR
            output = block * form.rows + row
            if index < pieces * form.batch and output < form.outputs:
                total = [Float32(0.0)] * VECTOR
                for part in cutlass.range_constexpr(form.partials):
                    at = partial + (part * each + column * form.pitch + row)
                    halves = (prim.floats(prim.load_shared(at + 4 * i)) for i in range(2))
                    values = [value for values in halves for value in values]
                    total = [a + b for a, b in zip(total, values, strict=True)]
                line = (skipped + column) * exchange.hidden
                if output < self.experts:
                    words = [self._present(value) for value in total]
                    for mailbox in mailboxes:
                        start = mailbox + Int64(line + 2 * output) * 2
                        prim.deliver(start, words[:4])
                        prim.deliver(start + 16, words[4:])
                else:
                    rounded = prim.packed(total)
                    for mailbox in mailboxes:
                        prim.deliver(mailbox + Int64(line + self.experts + output) * 2, rounded)
        if block == 0 and thread == 0:
            prim.store_words(prim.address(out[1], _SENT), [half.bitcast(Uint32)])

    def _present(self, value: Float32) -> Uint32:
        """Bits of a logit, none of which look like an empty place."""
        bits = value.bitcast(Uint32)
        empty = bits == Uint32(prim.ABSENT)
        return Uint32(cutlass.select_(empty, Uint32(NAN), bits))


class Route:
    """mailbox [2, R, capacity, 2 E/R + L/R], bias [E] FP32, rows [1] int32 -> ids [B, K] int32,
    best first, gains [B, K] FP32, z [B, L] BF16.

    One block per token. Score s = sigmoid(logit); the K largest s + bias are chosen, ties to the
    lower number, NaN behind everything; gains are s / (their sum + 1e-20) * scaling. Rows from
    `rows` on are padding: their ids are -1, gains and z 0. A warp takes 128 experts and finds its K
    best one by one; then every one of those counts how many are better.

    A wait longer than the limit ends in NaN and sets the last word of `turn`, as in `oproj`.
    Source: Kimi K3 technical report (arXiv 2607.24653), section 2.3.
    """

    form: tuple[Any, ...]

    def __init__(self, choice: Choice, exchange: Exchange) -> None:
        self.form = (*choice, *exchange)
        self.choice = choice
        self.exchange = exchange
        self.shares = choice.experts // exchange.ranks, choice.latent // exchange.ranks
        if 2 * self.shares[0] + self.shares[1] != exchange.hidden or any(
            share % VECTOR for share in self.shares
        ):
            raise ValueError(f"{choice} does not fill rows of {exchange}")

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.choice
        return {
            "mailbox": Argument("bfloat16", self.exchange.shape, "own"),
            "turn": Argument("int32", (TURN,)),
            "bias": Argument("float32", (form.experts,), "static"),
            "rows": Argument("int32", (1,)),
            "ids": Argument("int32", (form.batch, form.top_k)),
            "gains": Argument("float32", (form.batch, form.top_k)),
            "z": Argument("bfloat16", (form.batch, form.latent)),
        }

    @cute.jit
    def __call__(
        self,
        mailbox: cute.Tensor,
        turn: cute.Tensor,
        bias: cute.Tensor,
        rows: cute.Tensor,
        ids: cute.Tensor,
        gains: cute.Tensor,
        z: cute.Tensor,
        stream: Any,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self.kernel(mailbox, turn, bias, rows, ids, gains, z).launch(
            grid=(self.choice.batch, 1, 1),
            block=(self.choice.warps * prim.WARP, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self,
        mailbox: cute.Tensor,
        turn: cute.Tensor,
        bias: cute.Tensor,
        rows: cute.Tensor,
        ids: cute.Tensor,
        gains: cute.Tensor,
        z: cute.Tensor,
    ) -> None:
        form = cutlass.const_expr(self.choice)
        exchange = cutlass.const_expr(self.exchange)
        experts, latent = self.shares
        thread, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        lane, warp = thread % prim.WARP, thread // prim.WARP
        count = cutlass.const_expr(form.warps * form.top_k)

        memory = SmemAllocator()
        keys = memory.allocate_array(Uint32, count)
        numbers = memory.allocate_array(Int32, count)
        scores = memory.allocate_array(Float32, form.warps * prim.WARP * EACH)
        chosen = memory.allocate_array(Float32, form.top_k)

        cute.arch.griddepcontrol_launch_dependents()
        mine = cutlass.min(thread * EACH, Int32(form.experts - EACH))
        biases = prim.floats(prim.load_static(prim.address(bias, mine)))
        cute.arch.griddepcontrol_wait()

        half = prim.load_word(prim.address(turn, _SENT)).bitcast(Int32)
        failed = prim.load_word(prim.address(turn, _FAILED))
        limit = Uint32(cutlass.select_(failed != 0, Uint32(0), Uint32(exchange.looks)))
        live = token < prim.load_word(rows.iterator.toint()).bitcast(Int32)

        # 1. This thread's logits; latent numbers pass through.
        rank = mine // experts
        line = (half * exchange.ranks + rank) * exchange.capacity + token
        at = mailbox.iterator.toint() + (Int64(line) * exchange.hidden + mine % experts * 2) * 2
        words, late = prim.wait_for(at, prim.look(at), limit)
        pieces = cutlass.const_expr(form.latent // VECTOR)
        threads = cutlass.const_expr(form.warps * prim.WARP)
        for piece in cutlass.range_constexpr(-(-pieces // threads)):
            column = (piece * threads + thread) * VECTOR
            if column < form.latent:
                from_ = (half * exchange.ranks + column // latent) * exchange.capacity + token
                offset = Int64(from_) * exchange.hidden + 2 * experts + column % latent
                source = mailbox.iterator.toint() + offset * 2
                found, over = prim.wait_for(source, prim.look(source), limit)
                late = late | over
                prim.store(source, [Uint32(prim.ABSENT)] * 4)
                kept = [Uint32(cutlass.select_(live, word, Uint32(0))) for word in found]
                prim.store(prim.address(z, token * form.latent + column), kept)
        # Threads without experts repeated the last ones': nobody empties a place before all looked.
        cute.arch.sync_threads()
        if thread * EACH < form.experts:
            prim.store(at, [Uint32(prim.ABSENT)] * 4)
        if late != 0:
            prim.store_words(prim.address(turn, _FAILED), [Uint32(1)])
        if token == 0 and thread == 0:
            prim.store_words(prim.address(turn, _NEXT), [(1 - half).bitcast(Uint32)])

        # 2. The best of each warp, one after the other; 0 is the key of nobody.
        held = cute.make_rmem_tensor(EACH, Uint32)
        for i, (logit, by) in enumerate(zip(prim.floats(words), biases, strict=True)):
            score = 1.0 / (1.0 + cute.math.exp(-logit))
            scores[thread * EACH + i] = score
            inside = thread * EACH + i < form.experts
            held[i] = cutlass.select_(inside, self._key(score + by), Uint32(0))
        for place in cutlass.range(form.top_k, unroll=1):
            best, which = held[0], Int32(0)
            for i in cutlass.range_constexpr(1, EACH):
                better = held[i] > best
                best = Uint32(cutlass.select_(better, held[i], best))
                which = Int32(cutlass.select_(better, Int32(i), which))
            top = self._top(best)
            first = self._first(cute.arch.vote_ballot_sync(best == top))
            if lane == first:
                keys[warp * form.top_k + place] = top
                numbers[warp * form.top_k + place] = thread * EACH + which
                for i in cutlass.range_constexpr(EACH):
                    held[i] = cutlass.select_(which == i, Uint32(0), held[i])
        cute.arch.sync_threads()

        # 3. The best of them all. Of one warp, equal keys are in the order of their numbers.
        if thread < count:
            key, number, better_ = keys[thread], numbers[thread], Int32(0)
            for other in cutlass.range(count, unroll=8):
                ahead = (keys[other] > key) | ((keys[other] == key) & (numbers[other] < number))
                better_ = better_ + cutlass.select_(ahead, Int32(1), Int32(0))
            if better_ < form.top_k and key != 0:
                chosen[better_] = scores[number]
                shown = Int32(cutlass.select_(live, number, Int32(-1)))
                prim.store_words(
                    prim.address(ids, token * form.top_k + better_), [shown.bitcast(Uint32)]
                )
        cute.arch.sync_threads()
        if thread < form.top_k:
            total = Float32(0.0)
            for other in cutlass.range_constexpr(form.top_k):
                total = total + chosen[other]
            gain = chosen[thread] / (total + EPS) * form.scaling
            gain = Float32(cutlass.select_(live, gain, Float32(0.0)))
            prim.store_words(
                prim.address(gains, token * form.top_k + thread), [gain.bitcast(Uint32)]
            )

    def _key(self, value: Float32) -> Uint32:
        """Larger for larger numbers, 1 for NaN, above it for minus infinity."""
        bits = (value + 0.0).bitcast(Uint32)
        negative = (bits >> 31) != 0
        turned = Uint32(cutlass.select_(negative, ~bits, bits | Uint32(0x80000000)))
        return Uint32(cutlass.select_(value == value, turned, Uint32(1)))

    def _top(self, key: Uint32) -> Uint32:
        """The largest of the warp."""
        text = "redux.sync.max.u32 {$w0}, {$r0}, 0xffffffff;"
        return inline_ptx(text, write_only_types=[Uint32], read_only_args=[key])

    def _first(self, lanes: Any) -> Int32:
        """The lowest lane of a ballot."""
        text = "{ .reg .b32 turned; brev.b32 turned, {$r0}; bfind.shiftamt.u32 {$w0}, turned; }"
        return inline_ptx(text, write_only_types=[Int32], read_only_args=[Uint32(lanes)])
