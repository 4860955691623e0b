"""From the experts back to the residual stream on GPUs: sums over ranks, norm, up-projection.

Owns: device code. Does not own: mailboxes (`oproj.mailbox`), how maps are cut (`launch`). Read by:
`moe.launch`, `kernels.compiled`; needs CuTe DSL and nothing else.

Three exchanges, each with mailboxes of its own in the manner of `oproj.kernel`: ranks' latent sums
go to all ranks; shares of the shared experts' output go to the rank that owns the columns; finished
columns go to all ranks. Between them a rank's kernels follow each other: `PublishLatent`,
`NormLatent`, `PublishRow` and the next layer's `CollectRow`; `PublishShares` on the side.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.attn_res.kernel import VECTOR
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.moe.form import Routed
from kimi_k3.kernels.moe.kernel.finalize import COLUMNS, Finalize
from kimi_k3.kernels.oproj.form import TURN, Exchange
from kimi_k3.kernels.oproj.kernel import Collect, Publish
from kimi_k3.kernels.projection.form import Map

_SENT, _NEXT, _FAILED = range(TURN)


class PublishLatent(Finalize):
    """slots [B, K, L], ids [B, K] -> this rank's sum in every rank's mailbox, rounded to BF16."""

    vector = VECTOR

    def __init__(self, form: Routed, exchange: Exchange) -> None:
        if exchange.hidden != form.latent or form.batch > exchange.capacity:
            raise ValueError(f"{form} does not fill rows of {exchange}")
        super().__init__(form)
        self.form = (*self.form, *exchange)
        self.exchange = exchange

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        made = super().arguments()
        return {
            "slots": made["slots"],
            "ids": made["ids"],
            "peers": Argument("int64", (self.exchange.ranks,), "static"),
            "turn": Argument("int32", (TURN,)),
        }

    @cute.jit
    def __call__(
        self, slots: cute.Tensor, ids: cute.Tensor, peers: cute.Tensor, turn: cute.Tensor,
        stream: Stream,
    ) -> None:  # fmt: skip
        """Launch as a dependent of the kernel ahead."""
        self.kernel(slots, ids, peers, turn).launch(
            grid=(self.routed.latent // COLUMNS, self.routed.batch, 1),
            block=(COLUMNS // self.vector, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self, slots: cute.Tensor, ids: cute.Tensor, peers: cute.Tensor, turn: cute.Tensor
    ) -> None:
        exchange = cutlass.const_expr(self.exchange)
        token, column, total = self._summed(slots, ids)
        half = prim.load_word(prim.address(turn, _NEXT)).bitcast(Int32)
        line = half * (exchange.ranks * exchange.capacity) + token
        offset = (Int64(line) * exchange.hidden + column) * 2
        words = prim.packed(total)
        for rank in cutlass.range_constexpr(exchange.ranks):
            prim.deliver(prim.load_static_word(prim.address(peers, rank)) + offset, words)
        if token == 0 and column == 0:
            prim.store_words(prim.address(turn, _SENT), [half.bitcast(Uint32)])


class NormLatent:
    """mailbox [2, R, capacity, L] BF16, gain [L] FP32 -> y [B, L] BF16: the ranks' sums, added up
    in rank order in FP32 and rounded, over their root mean square, times gain.

    One block per token. Waits are bounded as in `oproj`.
    """

    form: tuple[Any, ...]

    def __init__(self, batch: int, exchange: Exchange, eps: float) -> None:
        if exchange.hidden % (VECTOR * prim.WARP) or batch > exchange.capacity:
            raise ValueError(f"{batch} rows of {exchange} are not whole warps")
        self.form = (batch, *exchange, eps)
        self.batch, self.exchange, self.eps = batch, exchange, eps

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        latent = self.exchange.hidden
        return {
            "mailbox": Argument("bfloat16", self.exchange.shape, "own"),
            "turn": Argument("int32", (TURN,)),
            "gain": Argument("float32", (latent,), "static"),
            "y": Argument("bfloat16", (self.batch, latent)),
        }

    @cute.jit
    def __call__(
        self, mailbox: cute.Tensor, turn: cute.Tensor, gain: cute.Tensor, y: cute.Tensor,
        stream: Stream,
    ) -> None:  # fmt: skip
        """Launch as a dependent of the kernel ahead."""
        self.kernel(mailbox, turn, gain, y).launch(
            grid=(self.batch, 1, 1),
            block=(self.exchange.hidden // VECTOR, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self, mailbox: cute.Tensor, turn: cute.Tensor, gain: cute.Tensor, y: cute.Tensor
    ) -> None:
        exchange = cutlass.const_expr(self.exchange)
        thread, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        lane, warp = thread % prim.WARP, thread // prim.WARP
        warps = cutlass.const_expr(exchange.hidden // VECTOR // prim.WARP)
        column = thread * VECTOR
        squares = SmemAllocator().allocate_array(Float32, warps)
        cute.arch.griddepcontrol_launch_dependents()
        gains = []
        for side in cutlass.range_constexpr(2):
            gains += prim.floats(prim.load_static(prim.address(gain, column + 4 * side)))
        cute.arch.griddepcontrol_wait()
        half = prim.load_word(prim.address(turn, _SENT)).bitcast(Int32)
        limit = _limit(turn, exchange)
        places = []
        for rank in cutlass.range_constexpr(exchange.ranks):
            line = (half * exchange.ranks + rank) * exchange.capacity + token
            offset = Int64(line) * exchange.hidden + column
            places.append(mailbox.iterator.toint() + offset * 2)
        total, late = _sum(places, limit)
        _settle(turn, half, late, (token == 0) & (thread == 0))
        kept = [prim.rounded(value) for value in total]
        square = prim.warp_sum(prim.dot(kept, kept))
        if lane == 0:
            squares[warp] = square
        cute.arch.sync_threads()
        whole = Float32(0.0)
        for other in cutlass.range_constexpr(warps):
            whole = whole + squares[other]
        scale = prim.rsqrt(whole * (1.0 / exchange.hidden) + self.eps)
        out = [value * scale * by for value, by in zip(kept, gains, strict=True)]
        prim.store(prim.address(y, token * exchange.hidden + column), prim.packed(out))


class PublishShares(Publish):
    """x [B, S] and w [D, S] of one rank's shared experts -> its share of every column of their
    output, in the mailbox of the rank that owns the column: rows of D / R."""

    def __init__(self, form: Map, exchange: Exchange) -> None:
        if form.rows % VECTOR or form.outputs != exchange.hidden * exchange.ranks:
            raise ValueError(f"{form} does not fill rows of {exchange}")
        if exchange.hidden % VECTOR or form.batch > exchange.capacity:
            raise ValueError(f"{form} does not fill rows of {exchange}")
        super(Publish, self).__init__(form)
        self.form = (*form, *exchange)
        self.exchange = exchange

    def _place(self, out: Any) -> Any:
        """The half to send, and where addresses are; which one is needed depends on the row."""
        return prim.load_word(prim.address(out[1], _NEXT)).bitcast(Int32), None

    @cute.jit
    def _store(
        self, partial: cute.Pointer, out: Any, place: Any, block: Int32, thread: Int32
    ) -> None:
        """Add the warps' sums up, eight rows per thread, and deliver them."""
        form = cutlass.const_expr(self.map)
        exchange = cutlass.const_expr(self.exchange)
        threads = cutlass.const_expr(form.warps * prim.WARP)
        pieces = cutlass.const_expr(form.rows // VECTOR)
        half, _ = place
        for round_ in cutlass.range(-(-(pieces * form.batch) // threads), unroll=1):
            index = round_ * threads + thread
            column, row = index // pieces, index % pieces * VECTOR
            output = block * form.rows + row
            if index < pieces * form.batch and output < form.outputs:
                total = _added(form, partial, column, row)
                owner = prim.load_static_word(prim.address(out[0], output // exchange.hidden))
                line = half * (exchange.ranks * exchange.capacity) + column
                offset = Int64(line) * exchange.hidden + output % exchange.hidden
                prim.deliver(owner + offset * 2, prim.packed(total))
        if block == 0 and thread == 0:
            prim.store_words(prim.address(out[1], _SENT), [half.bitcast(Uint32)])


class PublishRow(Publish):
    """x [B, L], the normed latent row, and w [D / R, L] of one rank -> the MoE's output in the
    columns it owns, the ranks' shares of the shared experts (`shares`, `shares_turn`) added, in
    every rank's mailbox."""

    def __init__(self, form: Map, exchange: Exchange) -> None:
        super().__init__(form, exchange)

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        made = super().arguments()
        shares = {
            "shares": Argument("bfloat16", self.exchange.shape, "own"),
            "shares_turn": Argument("int32", (TURN,)),
        }
        return made | shares

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,
        w: cute.Tensor,
        peers: cute.Tensor,
        turn: cute.Tensor,
        shares: cute.Tensor,
        shares_turn: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self._launch(x, w, (peers, turn, shares, shares_turn), stream)

    def _place(self, out: Any) -> Any:
        """The half to send, every rank's mailbox, the half the shares are in."""
        peers, turn, _, shares_turn = out
        half, mailboxes = super()._place((peers, turn))
        return half, mailboxes, prim.load_word(prim.address(shares_turn, _SENT)).bitcast(Int32)

    @cute.jit
    def _store(
        self, partial: cute.Pointer, out: Any, place: Any, block: Int32, thread: Int32
    ) -> None:
        """Add the warps' sums and the ranks' shares up, eight rows per thread; deliver them."""
        form = cutlass.const_expr(self.map)
        exchange = cutlass.const_expr(self.exchange)
        threads = cutlass.const_expr(form.warps * prim.WARP)
        pieces = cutlass.const_expr(form.rows // VECTOR)
        half, mailboxes, taken = place
        _, turn, shares, shares_turn = out
        limit = _limit(shares_turn, exchange)
        for round_ in cutlass.range(-(-(pieces * form.batch) // threads), unroll=1):
            index = round_ * threads + thread
            column, row = index // pieces, index % pieces * VECTOR
            output = block * form.rows + row
            if index < pieces * form.batch and output < form.outputs:
                places = []
                for rank in cutlass.range_constexpr(exchange.ranks):
                    line = (taken * exchange.ranks + rank) * exchange.capacity + column
                    offset = Int64(line) * exchange.hidden + output
                    places.append(shares.iterator.toint() + offset * 2)
                shared, late = _sum(places, limit)
                if late != 0:
                    prim.store_words(prim.address(shares_turn, _FAILED), [Uint32(1)])
                routed = _added(form, partial, column, row)
                words = prim.packed([a + b for a, b in zip(routed, shared, strict=True)])
                line = half * (exchange.ranks * exchange.capacity) + column
                offset = (Int64(line) * exchange.hidden + output) * 2
                for mailbox in mailboxes:
                    prim.deliver(mailbox + offset, words)
        if block == 0 and thread == 0:
            prim.store_words(prim.address(turn, _SENT), [half.bitcast(Uint32)])
            prim.store_words(prim.address(shares_turn, _NEXT), [(1 - taken).bitcast(Uint32)])


class CollectRow(Collect):
    """mailbox [2, R, capacity, D / R]: the finished columns of every rank are the delta of a mix
    site. Everything else as there."""

    def __init__(self, site: Any, exchange: Exchange) -> None:
        super().__init__(site, exchange)
        if exchange.hidden * exchange.ranks != site.hidden or exchange.hidden % VECTOR:
            raise ValueError(f"{exchange} does not make rows of {site}")

    @cute.jit
    def _delta(self, source: Any, token: Int32, column: Int32) -> list[Float32]:
        """This thread's columns, of the one rank that owns them; what was read is emptied."""
        mailbox, turn = source
        exchange = cutlass.const_expr(self.exchange)
        half = prim.load_word(prim.address(turn, _SENT)).bitcast(Int32)
        line = (half * exchange.ranks + column // exchange.hidden) * exchange.capacity + token
        offset = Int64(line) * exchange.hidden + column % exchange.hidden
        total, late = _sum([mailbox.iterator.toint() + offset * 2], _limit(turn, exchange))
        _settle(turn, half, late, (token == 0) & (column == 0))
        return total


class Activate:
    """gate_up [B, 2 S] BF16, gates first -> y [B, S] BF16: SiTU, in FP32, rounded once."""

    form: tuple[Any, ...]

    def __init__(self, batch: int, width: int, beta: float, linear_beta: float) -> None:
        if width % VECTOR or width // VECTOR > 1024:
            raise ValueError(f"{width} numbers are not whole vectors of one block")
        self.form = batch, width, beta, linear_beta
        self.batch, self.width, self.beta, self.linear_beta = self.form

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        return {
            "gate_up": Argument("bfloat16", (self.batch, 2 * self.width)),
            "y": Argument("bfloat16", (self.batch, self.width)),
        }

    @cute.jit
    def __call__(self, gate_up: cute.Tensor, y: cute.Tensor, stream: Stream) -> None:
        """Launch as a dependent of the kernel ahead."""
        self.kernel(gate_up, y).launch(
            grid=(self.batch, 1, 1),
            block=(self.width // VECTOR, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(self, gate_up: cute.Tensor, y: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        token, _, _ = cute.arch.block_idx()
        column = thread * VECTOR
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        at = token * (2 * self.width) + column
        gates = prim.unpacked(prim.load(prim.address(gate_up, at)))
        ups = prim.unpacked(prim.load(prim.address(gate_up, at + self.width)))
        made = [
            prim.situ(gate, up, self.beta, self.linear_beta)
            for gate, up in zip(gates, ups, strict=True)
        ]
        prim.store(prim.address(y, token * self.width + column), prim.packed(made))


def _added(form: Map, partial: Any, column: Any, row: Any) -> list[Float32]:
    """The warps' sums of eight rows of one batch column."""
    each = form.pitch * form.held_batch
    total = [Float32(0.0)] * VECTOR
    for part in range(form.partials):
        at = partial + (part * each + column * form.pitch + row)
        halves = [prim.floats(prim.load_shared(at + 4 * i)) for i in range(2)]
        values = [value for values in halves for value in values]
        total = [a + b for a, b in zip(total, values, strict=True)]
    return total


def _limit(turn: Any, exchange: Exchange) -> Uint32:
    """How often to look: not at all once a wait has been in vain."""
    failed = prim.load_word(prim.address(turn, _FAILED))
    return Uint32(cutlass.select_(failed != 0, Uint32(0), Uint32(exchange.looks)))


def _sum(places: list[Any], limit: Uint32) -> tuple[list[Float32], Uint32]:
    """Wait for 16 bytes at every place and empty it; their sum in order, and whether one did not
    come. All are looked at before the first is waited for."""
    seen = [prim.look(place) for place in places]
    total: list[Float32] = []
    late = Uint32(0)
    for place, words in zip(places, seen, strict=True):
        share, over = prim.wait_for(place, words, limit)
        late = late | over
        values = prim.unpacked(share)
        # The first is not added to zero: a sum of -0.0 alone is -0.0.
        total = [a + b for a, b in zip(total, values, strict=True)] if total else values
        prim.store(place, [Uint32(prim.ABSENT)] * 4)
    return total, late


@cute.jit
def _settle(turn: Any, half: Int32, late: Uint32, first: Any) -> None:
    """Tell of a wait in vain; the first thread makes the other half the next."""
    if late != 0:
        prim.store_words(prim.address(turn, _FAILED), [Uint32(1)])
    if first:
        prim.store_words(prim.address(turn, _NEXT), [(1 - half).bitcast(Uint32)])
