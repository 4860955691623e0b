"""Where the routed experts of a layer are read: in a copy of ours, or where vLLM has them.

Owns: both forms of a layer's weights, which kernel reads which, and the check that vLLM's lie as
the kernel thinks. Does not own: the layout (`mxfp4.repacked`), launches (`layer`). Read by: the
model, `decode`, `layer`.

vLLM rearranges a checkpoint's experts for its own kernels, so a copy from before costs their size
once more. `InPlace` reads vLLM's rearranged ones, as humming has them on compute capability 9.0 for
BF16 activations. That layout is no interface of anybody's: the first and the last expert are kept
until they have been compared, byte by byte, with what vLLM made of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from kimi_k3.kernels.moe.form import PIECE, PIECE_BYTES, STEP, Routed
from kimi_k3.kernels.moe.mxfp4 import GROUP, repacked, repacked_scales

if TYPE_CHECKING:
    from kimi_k3.kernels.gpu import Kernel

NAMES = ("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale")
"""Of vLLM's module, in the order of both forms."""


class Kept(NamedTuple):
    """Routed experts of a layer as the checkpoint has them: a second copy."""

    w13: Tensor
    """uint8 [E, 2I, L/2], gate rows first."""
    s13: Tensor
    """uint8 [E, 2I, L/32]."""
    w2: Tensor
    """uint8 [E, L, I/2]."""
    s2: Tensor
    """uint8 [E, L, I/32]."""


class InPlace(NamedTuple):
    """Views of vLLM's."""

    w13: Tensor
    """uint8 [E, L/16, 2I/64, 512]."""
    s13: Tensor
    """uint8 [E, L/32, 2I]."""
    w2: Tensor
    """uint8 [E, I/16, L/64, 512]."""
    s2: Tensor
    """uint8 [E, I/32, L]."""


Experts = Kept | InPlace


def extra_bytes(experts: Experts) -> int:
    """What exists twice."""
    return sum(one.nbytes for one in experts) if isinstance(experts, Kept) else 0


def kernel(experts: Experts, batch: int) -> tuple[Kernel, Routed]:
    """What reads them, for `batch` rows, and how it is cut."""
    from kimi_k3.kernels.moe import launch  # needs CuTe DSL

    make = launch.experts if isinstance(experts, Kept) else launch.repacked_experts
    made = make(batch, len(experts.w13))
    return made, made.routed


def kept(own: Any, sample: bool) -> Kept:
    """Called while vLLM's module still has them as the checkpoint; `sample`: the first and the last
    expert only."""
    found = [getattr(own, name).data.view(torch.uint8) for name in NAMES]
    return Kept(*((one[:: len(one) - 1] if sample else one).clone() for one in found))


def located(own: Any, sample: Kept) -> InPlace:
    """vLLM's, once it has rearranged them. Raises ValueError if they are not what `repacked` makes
    of the sample."""
    rows, columns = sample.w13.shape[1:]
    (outputs, half), experts = sample.w2.shape[1:], len(getattr(own, NAMES[0]))
    latent, inter = 2 * columns, 2 * half
    wanted = InPlace(
        repacked(sample.w13), repacked_scales(sample.s13),
        repacked(sample.w2), repacked_scales(sample.s2),
    )  # fmt: skip
    shapes = (
        (experts, latent // STEP, rows // PIECE, PIECE_BYTES),
        (experts, latent // GROUP, rows),
        (experts, inter // STEP, outputs // PIECE, PIECE_BYTES),
        (experts, inter // GROUP, outputs),
    )
    views = []
    for name, shape, part in zip(NAMES, shapes, wanted, strict=True):
        held = getattr(own, name).data
        size = torch.Size(shape).numel()
        if held.nbytes != size or not held.is_contiguous():
            raise ValueError(f"{name} has {held.nbytes} bytes, not {size}, or they lie apart")
        view = held.view(torch.uint8).view(shape)
        if not torch.equal(view[:: experts - 1], part):
            raise ValueError(f"{name} is not in the layout that is read in place")
        views.append(view)
    return InPlace(*views)
