"""Bringing weights into L2 beside kernels that leave memory idle.

Owns: device code. Does not own: which weights, and beside what. Read by: `kernels.compiled`, cases,
the benchmark; needs CuTe DSL and nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream

CHUNK = 8192
"""Bytes of one request."""


class Range(NamedTuple):
    """What code is made for."""

    outputs: int
    inputs: int
    blocks: int
    """Of one warp each: a bound on the multiprocessors whose copy engines take part, and so on the
    share of bandwidth that kernels beside this one lose."""


class Prefetch:
    """w [N, K] BF16: static weights, which a later kernel reads.

    Launched on a stream of its own, in stream order and not as a dependent: it reads nothing of a
    step and hands no value to the program, so it may run at any time, or be left out.
    """

    def __init__(self, form: Range) -> None:
        if form.outputs * form.inputs * 2 % 16:
            raise ValueError(f"{form.outputs}x{form.inputs} weights are not whole 16 bytes")
        self.form = form

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        return {"w": Argument("bfloat16", (self.form.outputs, self.form.inputs), "static")}

    @cute.jit
    def __call__(self, w: cute.Tensor, stream: Stream) -> None:
        """Launch in stream order."""
        self.kernel(w).launch(
            grid=(self.form.blocks, 1, 1),
            block=(prim.WARP, 1, 1),
            stream=stream,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(self, w: cute.Tensor) -> None:
        form = cutlass.const_expr(self.form)
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        size = cutlass.const_expr(form.outputs * form.inputs * 2)
        step = cutlass.const_expr(form.blocks * prim.WARP)
        # Neighbouring requests come from different blocks, so that all of them work to the end.
        first = thread * form.blocks + block
        for turn in cutlass.range(-(-size // (CHUNK * step)), unroll=1):
            at = (turn * step + first) * CHUNK
            if at < size:
                held = cutlass.min(size - at, Int32(CHUNK))
                prim.prefetch(w.iterator.toint() + Int64(at), held)
