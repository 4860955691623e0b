"""What lies in vLLM's caches between two calls: values that are not finite, and the null block.

Block 0 of every cache is the null block: it stands where a request has no block, so padded rows
point there, and no request's data may come to depend on it. Read by the vLLM child only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fasttrack.engine.base import Caches

PIECE = 2**20


def scan(
    layers: Mapping[str, Any], blocks: int, null_fill: float | None, whole: bool
) -> Caches | None:
    """Look at the caches that `layers` (by name) were given; `blocks` is the engine's count.

    With `null_fill`, the null block gets that value first. None when there are no caches, or when
    layers of several formats share memory: then bytes cannot be told from values.
    """
    tensors = [tensor for layer in layers.values() for tensor in _tensors(layer)]
    if not tensors or len({tensor.dtype for tensor in tensors}) > 1:
        return None
    nulls = [_null(tensor, blocks) for tensor in tensors]
    if null_fill is not None:
        for null in nulls:
            null.fill_(null_fill)
    digest = hashlib.sha256()
    for null in nulls:
        digest.update(null.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return Caches(
        nonfinite=_outside(tensors, nulls) if whole else None,
        null_nonfinite=sum(_nonfinite(null) for null in nulls),
        null_sha256=digest.hexdigest(),
    )


def _outside(tensors: list[Tensor], nulls: list[Tensor]) -> int:
    """Nonfinite values outside the null blocks, which are put out of the way and back again.

    Layers share storages; each is scanned once.
    """
    kept = [null.clone() for null in nulls]
    for null in nulls:
        null.zero_()
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    found = sum(_nonfinite(_flat(tensor)) for tensor in storages.values())
    for null, before in zip(nulls, kept, strict=True):
        null.copy_(before)
    return found


def _tensors(layer: Any) -> Iterator[Tensor]:
    held = getattr(layer, "kv_cache", None)
    for tensor in held if isinstance(held, list | tuple) else (held,):
        if isinstance(tensor, Tensor) and tensor.numel():
            yield tensor


def _null(tensor: Tensor, blocks: int) -> Tensor:
    """The null block of one cache; a kernel's blocks may be smaller than the engine's."""
    axis = next(axis for axis, size in enumerate(tensor.shape) if size and size % blocks == 0)
    return tensor.narrow(axis, 0, tensor.shape[axis] // blocks)


def _flat(tensor: Tensor) -> Tensor:
    """All values of a tensor's storage, those between its strides included."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def _nonfinite(tensor: Tensor) -> int:
    """Number of NaN and Inf, in pieces: a cache fills most of the machine's memory."""
    flat = tensor.reshape(-1)
    parts = (flat[start : start + PIECE] for start in range(0, flat.numel(), PIECE))
    return sum(part.numel() - int(part.isfinite().sum()) for part in parts)
