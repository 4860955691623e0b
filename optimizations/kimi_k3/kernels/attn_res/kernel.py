"""Mixing over depth on a GPU: one launch per mix site.

Owns: device code. Does not own: which site has which form (`launch`). Read by: `attn_res.launch`,
`kernels.compiled`; needs CuTe DSL and nothing else.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.memory import SmemAllocator

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream

THREADS = 128
VECTOR = 8
"""BF16 numbers a thread holds of every source: one 16-byte access."""
COLUMNS = THREADS * VECTOR
"""Columns of one block."""

Delta = Literal["none", "add", "restart"]


class Site(NamedTuple):
    """What code is made for; everything else a site needs is an argument."""

    hidden: int
    batch: int
    blocks: int
    """Blocks the bank has room for."""
    sources: int
    """Stored blocks that are mixed; the prefix comes on top."""
    delta: Delta
    """What happens to the prefix first: nothing, delta is added, delta takes its place."""
    write: bool
    """Whether the prefix is stored as block number `sources`."""
    eps: float
    final: bool = False
    """Whether the mixture is rounded to BF16 before the norm, as at the model's last site."""
    early: bool = True
    """Whether the kernel behind may begin before this one ends. Not where it is none of ours: ours
    are audited for loads above the wait."""


class AttnRes:
    """prefix [B, D], delta [B, D], bank [B, N, D] and y [B, D] BF16; score and gain [D] FP32.

    One cluster of D / 1024 blocks per token, each with 1024 columns of every source in registers:
    a source is read once. Two sums cross the cluster, through the blocks' shared memory: the 2 (n +
    1) sums the scores are made of, and the square sum of the mixture. FP32 throughout; rounds at
    the prefix, at the output and, at the final site, between mixture and norm.
    Source: Kimi K3 technical report (arXiv 2607.24653), section 2.2, equations 8-10.
    """

    form: tuple[Any, ...]
    resident = 0
    """Blocks of a multiprocessor that the compiler is told to make room for; 0: it chooses."""

    def __init__(self, site: Site) -> None:
        if site.hidden % COLUMNS or site.hidden // COLUMNS > 8:
            raise ValueError(f"hidden size {site.hidden} is not 1..8 times {COLUMNS}")
        if not 0 <= site.sources <= site.blocks <= 15 or (
            site.write and site.sources == site.blocks
        ):
            raise ValueError(f"{site.sources} sources of a bank of {site.blocks} blocks")
        self.form = site
        self.site = site
        self.cluster = site.hidden // COLUMNS

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.site
        row = form.batch, form.hidden
        return {
            "prefix": Argument("bfloat16", row),
            "delta": Argument("bfloat16", row),
            "bank": Argument("bfloat16", (form.batch, form.blocks, form.hidden)),
            "score": Argument("float32", (form.hidden,), "static"),
            "gain": Argument("float32", (form.hidden,), "static"),
            "y": Argument("bfloat16", row),
        }

    @cute.jit
    def __call__(
        self,
        prefix: cute.Tensor,
        delta: cute.Tensor,
        bank: cute.Tensor,
        score: cute.Tensor,
        gain: cute.Tensor,
        y: cute.Tensor,
        stream: Stream,
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self._launch(prefix, delta, bank, score, gain, y, stream)

    @cute.jit
    def _launch(
        self,
        prefix: cute.Tensor,
        source: Any,
        bank: cute.Tensor,
        score: cute.Tensor,
        gain: cute.Tensor,
        y: cute.Tensor,
        stream: Stream,
    ) -> None:
        """The launch, whatever delta comes from: `source` is what `_delta` is told."""
        self.kernel(prefix, source, bank, score, gain, y).launch(
            grid=(self.cluster, self.site.batch, 1),
            block=(THREADS, 1, 1),
            cluster=(self.cluster, 1, 1),
            min_blocks_per_mp=self.resident,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(
        self,
        prefix: cute.Tensor,
        source: Any,
        bank: cute.Tensor,
        score: cute.Tensor,
        gain: cute.Tensor,
        y: cute.Tensor,
    ) -> None:
        self._run(prefix, source, bank, score, gain, y)

    @cute.jit
    def _run(
        self,
        prefix: cute.Tensor,
        source: Any,
        bank: cute.Tensor,
        score: cute.Tensor,
        gain: cute.Tensor,
        y: cute.Tensor,
    ) -> None:
        """The whole kernel; delta is what `_delta` makes of `source`."""
        site = cutlass.const_expr(self.site)
        thread, _, _ = cute.arch.thread_idx()
        part, token, _ = cute.arch.block_idx()
        lane, warp = thread % prim.WARP, thread // prim.WARP
        column = part * COLUMNS + thread * VECTOR
        row = token * site.hidden + column

        warps = cutlass.const_expr(THREADS // prim.WARP)
        count = cutlass.const_expr(site.sources + 1)
        width = cutlass.const_expr(prim.width_of(2 * count))
        memory = SmemAllocator()
        sums = memory.allocate_array(Float32, self.cluster * warps * width)
        squares = memory.allocate_array(Float32, self.cluster * warps)
        barriers = memory.allocate_array(Int64, 2)

        if cutlass.const_expr(site.early):
            cute.arch.griddepcontrol_launch_dependents()
        weights, gains = [], []
        for half in cutlass.range_constexpr(2):
            weights += prim.floats(prim.load_static(prim.address(score, column + 4 * half)))
            gains += prim.floats(prim.load_static(prim.address(gain, column + 4 * half)))
        if thread == 0:
            for barrier in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(barriers + barrier, 1)
        cute.arch.mbarrier_init_fence()
        # Every block's barriers must be set up before another block sends.
        cute.arch.cluster_arrive_relaxed()
        cute.arch.cluster_wait()
        if thread == 0:
            for barrier, each in ((0, width), (1, 1)):
                size = self.cluster * warps * each * 4
                cute.arch.mbarrier_arrive_and_expect_tx(barriers + barrier, size)
        cute.arch.griddepcontrol_wait()

        held = []
        if cutlass.const_expr(site.delta != "restart"):
            own = prim.load(prim.address(prefix, row))
        for block in cutlass.range_constexpr(site.sources):
            at = (token * site.blocks + block) * site.hidden + column
            held.append(prim.load(prim.address(bank, at)))
        if cutlass.const_expr(site.delta != "none"):
            values = self._delta(source, token, column)
            if cutlass.const_expr(site.delta == "add"):
                values = [a + b for a, b in zip(prim.unpacked(own), values, strict=True)]
            own = tuple(prim.packed(values))
            prim.store(prim.address(prefix, row), own)
        if cutlass.const_expr(site.write):
            at = (token * site.blocks + site.sources) * site.hidden + column
            prim.store(prim.address(bank, at), own)
        held.append(own)

        if cutlass.const_expr(site.sources == 0):
            mixed = prim.unpacked(own)
        else:
            parts = []
            for source in held:
                values = prim.unpacked(source)
                parts.append(prim.dot(values, values))
            for source in held:
                parts.append(prim.dot(prim.unpacked(source), weights))
            mine = prim.transposed_sums(parts, lane)
            if lane < width:
                self._publish(sums + (part * warps + warp) * width + lane, mine, barriers)
            cute.arch.mbarrier_wait(barriers, 0)
            total = Float32(0.0)
            for index in cutlass.range_constexpr(self.cluster * warps):
                total += sums[index * width + lane % width]
            mixed = self._mix(held, total)
        if cutlass.const_expr(site.final):
            mixed = [prim.rounded(value) for value in mixed]

        square = prim.warp_sum(prim.dot(mixed, mixed))
        if lane == 0:
            self._publish(squares + part * warps + warp, square, barriers + 1)
        cute.arch.mbarrier_wait(barriers + 1, 0)
        total = Float32(0.0)
        for index in cutlass.range_constexpr(self.cluster * warps):
            total += squares[index]
        scale = prim.rsqrt(total * (1.0 / site.hidden) + site.eps)
        out = [value * scale * by for value, by in zip(mixed, gains, strict=True)]
        prim.store(prim.address(y, row), prim.packed(out))

    def _delta(self, source: Any, token: Int32, column: Int32) -> list[Float32]:
        """This thread's part of what the prefix takes: here, of a tensor in memory."""
        at = token * self.site.hidden + column
        return prim.unpacked(prim.load(prim.address(source, at)))

    def _publish(self, place: Any, value: Float32, barrier: Any) -> None:
        """Put `value` at the same place of every block of the cluster."""
        for peer in range(self.cluster):
            prim.send(peer, place, value, barrier)

    def _mix(self, held: list[Any], total: Float32) -> list[Float32]:
        """The sources weighted by the softmax of their scores; lane i holds square sum i, and lane
        i + width / 2 ... dot product i, as `parts` lists them."""
        site = self.site
        count = len(held)
        scores = []
        for source in range(count):
            square = cute.arch.shuffle_sync(total, source)
            dot = cute.arch.shuffle_sync(total, count + source)
            scores.append(dot * prim.rsqrt(square * (1.0 / site.hidden) + site.eps))
        top = scores[0]
        for one in scores[1:]:
            top = cute.arch.fmax(top, one)
        powers = [cute.math.exp(one - top) for one in scores]
        whole = powers[0]
        for one in powers[1:]:
            whole = whole + one
        mixed = [Float32(0.0)] * VECTOR
        for power, source in zip(powers, held, strict=True):
            share = power / whole
            mixed = [m + share * v for m, v in zip(mixed, prim.unpacked(source), strict=True)]
        return mixed
