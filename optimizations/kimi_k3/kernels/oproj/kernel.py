"""Output projection, sum over ranks, prefix and the mix site behind it, on GPUs: two launches.

Owns: device code. Does not own: mailboxes (`mailbox`), how the projection is cut (`launch`). Read
by: `oproj.launch`, `kernels.compiled`; needs CuTe DSL and nothing else.

Ranks exchange through mailboxes without a barrier, a counter or a fence: data is its own flag. An
empty mailbox holds `primitives.ABSENT`, which no sum rounds to; whoever reads polls until every
word is something else, then empties it again. Two halves take turns, so that a rank that is one
exchange ahead writes where nobody reads. Which half it is stands in `turn`, in memory, so a
captured graph may hold any number of exchanges.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.attn_res.kernel import VECTOR, AttnRes, Site
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.oproj.form import TURN, Exchange
from kimi_k3.kernels.projection.form import Map
from kimi_k3.kernels.projection.kernel import Projection

_SENT, _NEXT, _FAILED = range(TURN)
EAGER = 4
"""Largest batch that looks at both halves of a mailbox at once."""


class Publish(Projection):
    """x [B, K] and w [D, K] BF16 of one rank -> its share of the sum, in every rank's mailbox.

    peers [ranks] int64: addresses of the ranks' mailboxes at this rank's place in the first half.
    A share is rounded to BF16, as it is where ranks exchange tensors.
    """

    def __init__(self, form: Map, exchange: Exchange) -> None:
        if form.rows % VECTOR or form.outputs % VECTOR or form.outputs != exchange.hidden:
            raise ValueError(f"{form} does not fill rows of {exchange}")
        if form.batch > exchange.capacity:
            raise ValueError(f"{form.batch} rows for mailboxes of {exchange.capacity}")
        super().__init__(form)
        self.form = (*form, *exchange)
        self.exchange = exchange

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        made = super().arguments()
        return {
            "x": made["x"],
            "w": made["w"],
            "peers": Argument("int64", (self.exchange.ranks,), "static"),
            "turn": Argument("int32", (TURN,)),
        }

    @cute.jit
    def __call__(
        self, x: cute.Tensor, w: cute.Tensor, peers: cute.Tensor, turn: cute.Tensor, stream: Stream
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self._launch(x, w, (peers, turn), stream)

    def _place(self, out: Any) -> Any:
        """The half to send, and every rank's mailbox."""
        peers, turn = out
        half = prim.load_word(prim.address(turn, _NEXT)).bitcast(Int32)
        ranks = range(self.exchange.ranks)
        return half, [prim.load_static_word(prim.address(peers, rank)) for rank in ranks]

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
            if index < pieces * form.batch and block * form.rows + row < form.outputs:
                total = [Float32(0.0)] * VECTOR
                for part in cutlass.range_constexpr(form.partials):
                    at = partial + (part * each + column * form.pitch + row)
                    halves = (prim.floats(prim.load_shared(at + 4 * i)) for i in range(2))
                    values = [value for values in halves for value in values]
                    total = [a + b for a, b in zip(total, values, strict=True)]
                words = prim.packed(total)
                line = (skipped + column) * exchange.hidden + block * form.rows + row
                for mailbox in mailboxes:
                    prim.deliver(mailbox + Int64(line) * 2, words)
        if block == 0 and thread == 0:
            prim.store_words(prim.address(out[1], _SENT), [half.bitcast(Uint32)])


class Collect(AttnRes):
    """mailbox [G, ranks, capacity, D] BF16: the ranks' shares, summed in rank order in FP32, are
    the delta of a mix site. Everything else as there.

    A wait longer than the limit ends in NaN and sets the last word of `turn`, after which no wait
    is long: a rank that is lost stops the others, and they cannot take garbage for a result.
    """

    resident = 1

    def __init__(self, site: Site, exchange: Exchange) -> None:
        if site.delta == "none" or site.batch > exchange.capacity:
            raise ValueError(f"{site} takes nothing out of {exchange}")
        if exchange.generations != 2:
            raise ValueError(f"mailboxes of {exchange.generations} parts, not two halves")
        super().__init__(site)
        self.form = (*site, *exchange)
        self.exchange = exchange

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        made = super().arguments()
        return {
            "prefix": made["prefix"],
            "mailbox": Argument("bfloat16", self.exchange.shape, "own"),
            "turn": Argument("int32", (TURN,)),
            **{name: made[name] for name in ("bank", "score", "gain", "y")},
        }

    @cute.jit
    def __call__(
        self,
        prefix: cute.Tensor,
        mailbox: cute.Tensor,
        turn: cute.Tensor,
        bank: cute.Tensor,
        score: cute.Tensor,
        gain: cute.Tensor,
        y: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self._launch(prefix, (mailbox, turn), bank, score, gain, y, stream)

    @cute.jit
    def _delta(self, source: Any, token: Int32, column: Int32) -> list[Float32]:
        """This thread's part of the ranks' sum; what was read is emptied."""
        mailbox, turn = source
        exchange = cutlass.const_expr(self.exchange)
        half = prim.load_word(prim.address(turn, _SENT)).bitcast(Int32)
        failed = prim.load_word(prim.address(turn, _FAILED))
        limit = cutlass.select_(failed != 0, Uint32(0), Uint32(exchange.looks))
        halves = [
            [
                prim.address(mailbox, (Int64(line) * exchange.capacity + token) * exchange.hidden)
                + column * 2
                for line in range(each * exchange.ranks, (each + 1) * exchange.ranks)
            ]
            for each in range(exchange.generations)
        ]
        places = self._chosen(half, halves)
        if cutlass.const_expr(self.site.batch <= EAGER):
            # Before it is known which half it is: one memory latency less, for twice the reads.
            looks = [[prim.look(place) for place in each] for each in halves]
            seen = [tuple(self._chosen(half, pair)) for pair in zip(*looks, strict=True)]
        else:
            seen = [prim.look(place) for place in places]
        total, late = self._sum(places, seen, limit)
        if late != 0:
            prim.store_words(prim.address(turn, _FAILED), [Uint32(1)])
        if token == 0 and column == 0:
            prim.store_words(prim.address(turn, _NEXT), [(1 - half).bitcast(Uint32)])
        return total

    def _chosen(self, half: Int32, halves: Any) -> list[Any]:
        """What belongs to the half in turn."""
        first, second = halves
        return [cutlass.select_(half == 0, a, b) for a, b in zip(first, second, strict=True)]

    def _sum(self, places: Any, seen: Any, limit: Uint32) -> tuple[list[Float32], Uint32]:
        """Wait for every rank's share, empty its place; the sum, and whether one did not come."""
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
