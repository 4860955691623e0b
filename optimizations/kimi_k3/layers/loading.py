"""How one checkpoint tensor reaches one rank's parameters.

Owns: sharding rules and the checks around a load. Does not own: names and full shapes
(`reference.weights`), or which layer wants which name (each layer says so in `slots`).
Read by: the layers, the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)

from kimi_k3.dims import Dims
from kimi_k3.reference.weights import check, shapes


@dataclass(frozen=True)
class Slot:
    """Destination of one checkpoint tensor."""

    load: Callable[[Tensor], None]
    """Takes the whole tensor, keeps this rank's part."""
    dim: int | None = None
    """Dimension split over ranks, or None if every rank keeps all of it."""


Slots = dict[str, Slot]


def this_rank(tensor: Tensor, dim: int | None) -> Tensor:
    """This rank's part of `tensor` along `dim` (a view), or all of it for None."""
    if dim is None:
        return tensor
    part = tensor.shape[dim] // get_tensor_model_parallel_world_size()
    return tensor.narrow(dim, get_tensor_model_parallel_rank() * part, part)


def parameter(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """An uninitialised parameter of the rank-local `shape`, in the model's dtype by default."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


def into(destination: Tensor, dim: int | None = None) -> Slot:
    """Copy this rank's part, split along `dim`, into a tensor of as many elements."""

    def load(tensor: Tensor) -> None:
        destination.copy_(this_rank(tensor, dim).reshape(destination.shape))

    return Slot(load, dim)


def linear(layer: Any, dim: int | None = None, part: int | None = None) -> Slot:
    """Use a vLLM linear layer's own loader; `part` names one projection of a merged layer."""

    def load(tensor: Tensor) -> None:
        if part is None:
            layer.weight.weight_loader(layer.weight, tensor)
        else:
            layer.weight.weight_loader(layer.weight, tensor, part)

    return Slot(load, dim)


def replicated(layer: Any, part: int) -> Slot:
    """Copy the whole tensor into one projection of a merged column-parallel layer.

    The layer declares that projection `tp` times as wide as it is, so that every rank has room for
    all of it: one GEMM then serves sharded and replicated projections of the same input.
    """
    sizes = [size // layer.tp_size for size in layer.output_sizes]
    begin = sum(sizes[:part])
    return into(layer.weight.data[begin : begin + sizes[part]])


def under(prefix: str, slots: Mapping[str, Slot]) -> Slots:
    """`slots` with `prefix` put before every name."""
    return {prefix + name: slot for name, slot in slots.items()}


def load_all(
    dims: Dims, slots: Mapping[str, Slot], weights: Iterable[tuple[str, Tensor]], keep: bool
) -> dict[str, Tensor]:
    """Load every tensor of `weights`; with `keep`, also return this rank's raw FP32 parts by name.

    Tensors of a wrong shape or an unknown name are skipped and, like missing ones, reported
    together: raises one `CheckpointError` naming each of them.
    """
    found: dict[str, tuple[int, ...]] = {}
    kept: dict[str, Tensor] = {}
    wanted = shapes(dims)
    for name, stored in weights:
        found[name] = tuple(stored.shape)
        if name not in slots:
            continue
        tensor = stored[: dims.kda_heads] if name.endswith(".A_log") else stored
        if tuple(tensor.shape) != wanted[name]:
            continue
        slots[name].load(tensor)
        if keep:
            kept[name] = this_rank(tensor, slots[name].dim).float().contiguous().clone()
    check(dims, found)
    return kept
