"""New cache rows of an MLA layer, made by one warp of a kernel.

Owns: the norm of the latent, a cache row's numbers. Does not own: which warp, when. Read by:
`mla.kernel.query`; needs CuTe DSL and nothing else.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from kimi_k3.kernels import primitives as prim
from kimi_k3.kernels.mla.form import LATENT, QUERY, ROW, SHARED, Prepare, pitch


class Rows:
    """The arithmetic of one form."""

    def __init__(self, form: Prepare) -> None:
        self.form = form

    @cute.jit
    def fill(
        self,
        projected: cute.Tensor,
        slot: cute.Tensor,
        latent_norm: cute.Tensor,
        scale: cute.Tensor,
        cache: cute.Tensor,
        block: Int32,
        lane: Int32,
    ) -> None:
        """Cache rows of this block's tokens, by one warp."""
        form = cutlass.const_expr(self.form)
        gain = []
        for half in cutlass.range_constexpr(2):
            gain += prim.unpacked(prim.load_static(prim.address(latent_norm, 16 * lane + 8 * half)))
        shrink = 1.0 / scale[0]
        for turn in cutlass.range(-(-form.rows // form.blocks), unroll=1):
            token = turn * form.blocks + block
            if token < form.rows:
                place = load_slot(slot, token)
                base = token * pitch(form.heads) + QUERY
                values = []
                for half in cutlass.range_constexpr(2):
                    at = prim.address(projected, base + 16 * lane + 8 * half)
                    values += prim.unpacked(prim.load(at))
                at = prim.address(projected, base + LATENT + 8 * (lane % 8))
                tail = prim.unpacked(prim.load(at))
                total = prim.warp_sum(prim.dot(values, values))
                factor = prim.rsqrt(total * (1.0 / LATENT) + form.eps)
                latent = [
                    prim.rounded(value * factor * by)
                    for value, by in zip(values, gain, strict=True)
                ]
                numbers = [value * shrink for value in latent]
                rest = [value * shrink for value in tail]
                if place >= 0:
                    to = prim.address(cache, Int64(place) * ROW)
                    if cutlass.const_expr(form.fp8):
                        prim.store_words(to + 16 * lane, prim.packed_bytes(numbers))
                        if lane < SHARED // 8:
                            prim.store_words(to + LATENT + 8 * lane, prim.packed_bytes(rest))
                    else:
                        prim.store_words(to + 32 * lane, prim.packed(numbers[:8]))
                        prim.store_words(to + 32 * lane + 16, prim.packed(numbers[8:]))
                        if lane < SHARED // 8:
                            prim.store_words(to + 2 * LATENT + 16 * lane, prim.packed(rest))


def load_slot(slot: Any, token: Any) -> Int32:
    """Where a token's cache row lies."""
    return prim.load_word(prim.address(slot, token)).bitcast(Int32)
