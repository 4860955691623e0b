"""The sum over a token's routed experts, on a GPU.

Owns: device code. Read by: `moe.launch`, `moe.kernel.tail`, `kernels.compiled`; needs CuTe DSL and
nothing else.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.gpu import Argument, Stream
from kimi_k3.kernels.moe.form import Routed

COLUMNS = 512
"""Of one block."""


class Finalize:
    """slots [B, K, L] FP32, ids [B, K] -> y [B, L] BF16: the sum over K in their order, FP32, one
    rounding. Slots whose id is no expert's are left out, whatever they hold."""

    form: tuple[Any, ...]
    vector = 4
    """Columns of a thread."""

    def __init__(self, form: Routed) -> None:
        if form.latent % COLUMNS:
            raise ValueError(f"latent width {form.latent} is not whole blocks of {COLUMNS}")
        self.routed = form
        self.form = form.batch, form.top_k, form.latent, form.experts

    def arguments(self) -> dict[str, Argument]:
        """By name, in order."""
        form = self.routed
        return {
            "slots": Argument("float32", (form.batch, form.top_k, form.latent)),
            "ids": Argument("int32", (form.batch, form.top_k)),
            "y": Argument("bfloat16", (form.batch, form.latent)),
        }

    @cute.jit
    def __call__(
        self, slots: cute.Tensor, ids: cute.Tensor, y: cute.Tensor, stream: Stream
    ) -> None:
        """Launch as a dependent of the kernel ahead."""
        self.kernel(slots, ids, y).launch(
            grid=(self.routed.latent // COLUMNS, self.routed.batch, 1),
            block=(COLUMNS // self.vector, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
            preferred_smem_carveout=prim.ALL_SHARED,
        )

    @cute.kernel
    def kernel(self, slots: cute.Tensor, ids: cute.Tensor, y: cute.Tensor) -> None:
        token, column, total = self._summed(slots, ids)
        prim.store_words(prim.address(y, token * self.routed.latent + column), prim.packed(total))

    def _summed(self, slots: Any, ids: Any) -> tuple[Int32, Int32, list[Float32]]:
        """Wait for the kernel ahead; this thread's token, first column and sums. All loads come
        before the first use."""
        form = self.routed
        thread, _, _ = cute.arch.thread_idx()
        part, token, _ = cute.arch.block_idx()
        column = part * COLUMNS + thread * self.vector
        cute.arch.griddepcontrol_launch_dependents()
        cute.arch.griddepcontrol_wait()
        pairs = [token * form.top_k + slot for slot in range(form.top_k)]
        experts = [prim.load_word(prim.address(ids, pair)).bitcast(Int32) for pair in pairs]
        held = []
        for pair in pairs:
            at = prim.address(slots, pair * form.latent + column)
            words = [prim.load(at + 16 * i) for i in range(self.vector // 4)]
            held.append([value for one in words for value in prim.floats(one)])
        total = [Float32(0.0)] * self.vector
        for expert, values in zip(experts, held, strict=True):
            live = (expert >= 0) & (expert < form.experts)
            total = [
                sum_ + Float32(cutlass.select_(live, value, Float32(0.0)))
                for sum_, value in zip(total, values, strict=True)
            ]
        return token, column, total
