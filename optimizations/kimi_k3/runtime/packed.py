"""A model's weights as the specialised step holds them: packed, layer by layer.

Owns: which units a layer runs, with which packed weights. Does not own: packing of one operation
(`kernels.*.prepared`), the order of a step (`executor`). Read by: the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.kernels.attn_res import prepared as attn_res
from kimi_k3.kernels.common import Constants, Get
from kimi_k3.kernels.kda import prepared as kda
from kimi_k3.kernels.kda.prepared import KdaWeights
from kimi_k3.kernels.mla import prepared as mla
from kimi_k3.kernels.mla.prepared import MlaWeights
from kimi_k3.kernels.moe import prepared as moe


@dataclass(frozen=True)
class Layer:
    """Packed weights of one layer and its place in the stack."""

    attention: Literal["kda", "mla"]
    mlp: tuple[str, ...]
    """Units of the MLP half."""
    opens: int | None
    """AttnRes block stored before this layer."""
    ordinal: int
    """Number of this layer among the layers of its kind."""
    sites: Tensor
    """int64 [3], see `kernels.units`."""
    attention_weights: KdaWeights | MlaWeights
    mlp_weights: tuple[tuple[Tensor, ...], ...]
    """Per unit of the MLP half."""

    def tensors(self) -> list[Tensor]:
        """Everything held."""
        own = self.attention_weights
        attention = own.flat() if isinstance(own, KdaWeights) else own
        return [self.sites, *attention, *chain(*self.mlp_weights)]


def layers(dims: Dims, c: Constants, rank: int, weights: Mapping[str, Tensor]) -> tuple[Layer, ...]:
    """Pack every layer of `weights`, checkpoint names without `language_model.`, for one rank.

    Raises ValueError for weights that are missing, not FP32 on the CPU, or of another shape.
    """
    return tuple(_layer(dims, c, rank, weights, number) for number in range(dims.layers))


def final(weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Score and gain of the last mix site. Raises as `layers` does."""
    return attn_res.pack(_getter(weights, "model."), "output_attn_res", "norm")


def _layer(
    dims: Dims, c: Constants, rank: int, weights: Mapping[str, Tensor], number: int
) -> Layer:
    get = _getter(weights, f"model.layers.{number}.")
    opens = dims.block_write(number)
    counts = [dims.sources(number), dims.mlp_sources(number), opens is not None]
    kind = dims.layer_kinds[number]
    mlp: tuple[str, ...] = ("dense",)
    mlp_weights: tuple[tuple[Tensor, ...], ...]
    if number in dims.moe_layers:
        mlp = ("moe_front", "experts", "moe_tail")
        mlp_weights = moe.pack(get, c, rank)
        if c.tp == 1:  # nothing to exchange in between
            mlp, mlp_weights = ("moe",), (tuple(chain(*mlp_weights)),)
    else:
        mlp_weights = (moe.pack_dense(get, c),)
    return Layer(
        attention=kind,
        mlp=mlp,
        opens=opens,
        ordinal=dims.layer_kinds[:number].count(kind),
        sites=torch.tensor(counts, dtype=torch.int64),
        attention_weights=kda.pack(get, c) if kind == "kda" else mla.pack(get, c),
        mlp_weights=mlp_weights,
    )


def _getter(weights: Mapping[str, Tensor], prefix: str) -> Get:
    """Look weights up below `prefix`, refusing what cannot be packed."""

    def get(name: str) -> Tensor:
        tensor = weights.get(prefix + name)
        if tensor is None:
            raise ValueError(f"missing weight: {prefix}{name}")
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            found = f"{tensor.dtype} on {tensor.device}"
            raise ValueError(f"{prefix}{name} must be torch.float32 on cpu, got {found}")
        return tensor.detach()

    return get
