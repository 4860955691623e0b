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
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.moe.form import Choice
from kimi_k3.kernels.oproj.form import TURN, Exchange
from kimi_k3.kernels.oproj.kernel import Publish
from kimi_k3.kernels.projection.form import Map

_SENT, _NEXT, _FAILED = range(TURN)
VECTOR = 8
EACH = 4
"""Experts of a thread."""
BETA, LINEAR_BETA = 4.0, 25.0
"""Of SiTU."""
NAN = 0x7FFFFFFF
NOBODY = -(1 << 31)
"""Key of a place without an expert."""
EPS = 1e-20
"""Keeps the weights finite where every chosen score underflows."""


class PublishFront(Publish):
    """x [B, D] and w [E/R + L/R, D] BF16 of one rank -> its logits and latent numbers in every
    rank's mailbox, whose rows hold 2 E/R + L/R BF16.

    Sums of a stage are added to those of the stages before with rounding to nearest; a matrix
    instruction cuts off, which shows in a logit.
    """

    fresh = True

    def __init__(self, form: Map, exchange: Exchange, experts: int, local: int = 0) -> None:
        if form.rows % VECTOR or form.outputs % VECTOR or experts % VECTOR or local % VECTOR:
            raise ValueError(f"{form} has pieces with fewer than {VECTOR} rows")
        if form.outputs - local + experts != exchange.hidden or form.batch > exchange.capacity:
            raise ValueError(f"{form} with {experts} experts does not fill rows of {exchange}")
        super(Publish, self).__init__(form)
        self.form = (*form, *exchange, experts, local)
        self.exchange = exchange
        self.experts, self.local = experts, local

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
        first_local = cutlass.const_expr(form.outputs - self.local)
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
                elif output < first_local:
                    rounded = prim.packed(total)
                    for mailbox in mailboxes:
                        prim.deliver(mailbox + Int64(line + self.experts + output) * 2, rounded)
                if cutlass.const_expr(self.local > 0):  # noqa: SIM102 - one of them is no code
                    if output >= first_local:
                        own = column * self.local + output - first_local
                        prim.store(prim.address(out[2], own), prim.packed(total))
        if block == 0 and thread == 0:
            prim.store_words(prim.address(out[1], _SENT), [half.bitcast(Uint32)])

    def _present(self, value: Float32) -> Uint32:
        """Bits of a logit, none of which look like an empty place."""
        bits = value.bitcast(Uint32)
        empty = bits == Uint32(prim.ABSENT)
        return Uint32(cutlass.select_(empty, Uint32(NAN), bits))


class PublishFrontAndShared(PublishFront):
    """The same, w [E/R + L/R + 2 S, D], and the last rows' sums in gate_up [B, 2 S] BF16: gates and
    ups of this rank's shared experts, which no other rank needs."""

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        return super().arguments() | {"gate_up": Argument("bfloat16", (self.map.batch, self.local))}

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        w: cute.Tensor,
        peers: cute.Tensor,
        turn: cute.Tensor,
        gate_up: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self._launch(x, w, (peers, turn, gate_up), stream)

    def _place(self, out: Any) -> Any:
        """The half to send, and every rank's mailbox."""
        return super()._place(out[:2])


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
    width = 0
    """Numbers of the shared experts that are activated beside."""

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
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self._launch((mailbox, turn, bias, rows, ids, gains, z), (), stream)

    @cute.jit
    def _launch(self, tensors: Any, shared: Any, stream: Stream) -> None:
        """The launch, with or without what is to be activated."""
        self.kernel(*tensors, shared).launch(
            grid=(self.choice.batch, 1, 1),
            block=(self.choice.threads, 1, 1),
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
        shared: Any,
    ) -> None:
        self._run(mailbox, turn, bias, rows, ids, gains, z, shared)

    @cute.jit
    def _activate(self, shared: Any, token: Int32, thread: Int32) -> None:
        """SiTU of a row of the shared experts, while the mailbox is on its way."""
        gate_up, active = shared
        width = cutlass.const_expr(self.width)
        for piece in cutlass.range_constexpr(-(-width // (VECTOR * self.choice.threads))):
            column = (piece * self.choice.threads + thread) * VECTOR
            if column < width:
                at = token * (2 * width) + column
                gates = prim.unpacked(prim.load(prim.address(gate_up, at)))
                ups = prim.unpacked(prim.load(prim.address(gate_up, at + width)))
                made = [
                    prim.situ(gate, up, BETA, LINEAR_BETA)
                    for gate, up in zip(gates, ups, strict=True)
                ]
                prim.store(prim.address(active, token * width + column), prim.packed(made))

    @cute.jit
    def _run(
        self,
        mailbox: cute.Tensor,
        turn: cute.Tensor,
        bias: cute.Tensor,
        rows: cute.Tensor,
        ids: cute.Tensor,
        gains: cute.Tensor,
        z: cute.Tensor,
        shared: Any,
    ) -> None:
        form = cutlass.const_expr(self.choice)
        exchange = cutlass.const_expr(self.exchange)
        experts, latent = self.shares
        thread, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        lane, warp = thread % prim.WARP, thread // prim.WARP
        count = cutlass.const_expr(form.warps * form.top_k)

        memory = SmemAllocator()
        keys = memory.allocate_array(Int32, count)
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
        pieces = cutlass.const_expr(-(-(form.latent // VECTOR) // form.threads))
        sources, inside = [], []
        for piece in cutlass.range_constexpr(pieces):
            column = (piece * form.threads + thread) * VECTOR
            inside.append(column < form.latent)
            column = cutlass.min(column, Int32(form.latent - VECTOR))
            from_ = (half * exchange.ranks + column // latent) * exchange.capacity + token
            offset = Int64(from_) * exchange.hidden + 2 * experts + column % latent
            sources.append(mailbox.iterator.toint() + offset * 2)
        # All are looked at before the first is waited for.
        seen = [prim.look(source) for source in (at, *sources)]
        if cutlass.const_expr(self.width > 0):
            self._activate(shared, token, thread)
        words, late = prim.wait_for(at, seen[0], limit)
        for piece in cutlass.range_constexpr(pieces):
            found, over = prim.wait_for(sources[piece], seen[1 + piece], limit)
            late = late | over
            if inside[piece]:
                kept = [Uint32(cutlass.select_(live, word, Uint32(0))) for word in found]
                to = token * form.latent + (piece * form.threads + thread) * VECTOR
                prim.store(prim.address(z, to), kept)
        # Threads without experts repeated the last ones': nobody empties a place before all looked.
        cute.arch.sync_threads()
        if thread * EACH < form.experts:
            prim.store(at, [Uint32(prim.ABSENT)] * 4)
        for piece in cutlass.range_constexpr(pieces):
            if inside[piece]:
                prim.store(sources[piece], [Uint32(prim.ABSENT)] * 4)
        if late != 0:
            prim.store_words(prim.address(turn, _FAILED), [Uint32(1)])
        if token == 0 and thread == 0:
            prim.store_words(prim.address(turn, _NEXT), [(1 - half).bitcast(Uint32)])

        # 2. The best of each warp, one after the other.
        held = cute.make_rmem_tensor(EACH, Int32)
        for i, (logit, by) in enumerate(zip(prim.floats(words), biases, strict=True)):
            score = 1.0 / (1.0 + cute.math.exp(-logit))
            scores[thread * EACH + i] = score
            there = thread * EACH + i < form.experts
            held[i] = cutlass.select_(there, self._key(score + by), Int32(NOBODY))
        for place in cutlass.range(form.top_k, unroll=1):
            best, which = held[0], Int32(0)
            for i in cutlass.range_constexpr(1, EACH):
                better = held[i] > best
                best = Int32(cutlass.select_(better, held[i], best))
                which = Int32(cutlass.select_(better, Int32(i), which))
            top = self._top(best)
            first = self._first(cute.arch.vote_ballot_sync(best == top))
            if lane == first:
                keys[warp * form.top_k + place] = top
                numbers[warp * form.top_k + place] = thread * EACH + which
                for i in cutlass.range_constexpr(EACH):
                    held[i] = cutlass.select_(which == i, Int32(NOBODY), held[i])
        cute.arch.sync_threads()

        # 3. The best of them all. Of one warp, equal keys are in the order of their numbers.
        if thread < count:
            key, number, better_ = keys[thread], numbers[thread], Int32(0)
            for other in cutlass.range(count, unroll=8):
                ahead = (keys[other] > key) | ((keys[other] == key) & (numbers[other] < number))
                better_ = better_ + cutlass.select_(ahead, Int32(1), Int32(0))
            if better_ < form.top_k and key != NOBODY:
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

    def _key(self, value: Float32) -> Int32:
        """Larger for larger numbers; NaN below minus infinity, and above nobody."""
        bits = (value + 0.0).bitcast(Int32)
        turned = Int32(cutlass.select_(bits < 0, bits ^ Int32(0x7FFFFFFF), bits))
        return Int32(cutlass.select_(value == value, turned, Int32(NOBODY + 1)))

    def _top(self, key: Int32) -> Int32:
        """The largest of the warp."""
        text = "redux.sync.max.s32 {$w0}, {$r0}, 0xffffffff;"
        return inline_ptx(text, write_only_types=[Int32], read_only_args=[key])

    def _first(self, lanes: Any) -> Int32:
        """The lowest lane of a ballot."""
        text = "{ .reg .b32 turned; brev.b32 turned, {$r0}; bfind.shiftamt.u32 {$w0}, turned; }"
        return inline_ptx(text, write_only_types=[Int32], read_only_args=[Uint32(lanes)])


class RouteAndActivate(Route):
    """The same, and gate_up [B, 2 S] -> active [B, S] BF16: SiTU of this rank's shared experts,
    padding rows included."""

    def __init__(self, choice: Choice, exchange: Exchange, width: int) -> None:
        super().__init__(choice, exchange)
        if width % VECTOR:
            raise ValueError(f"{width} numbers are not whole vectors")
        self.form = (*self.form, width)
        self.width = width

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        batch = self.choice.batch
        return super().arguments() | {
            "gate_up": Argument("bfloat16", (batch, 2 * self.width)),
            "active": Argument("bfloat16", (batch, self.width)),
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
        gate_up: cute.Tensor,
        active: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self._launch((mailbox, turn, bias, rows, ids, gains, z), (gate_up, active), stream)
