"""Shared by the tests of this package: small models with generated weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kimi_k3 import checkpoint
from kimi_k3.dims import Dims
from kimi_k3.presets import NANO

Model = tuple[Dims, dict[str, Tensor]]


def _generate(config: dict[str, Any], dtype: torch.dtype) -> Model:
    dims = Dims.from_config(config)
    made = checkpoint.weights(dims)
    return dims, {name: torch.from_numpy(array).to(dtype) for name, array in made.items()}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def build() -> Callable[..., Model]:
    """Factory of FP64 variants of k3-nano: `build(layers, mla, block, **other config keys)`.

    `mla` holds the 1-based MLA layers, as the config does.
    """

    def make(layers: int, mla: tuple[int, ...], block: int, **other: Any) -> Model:
        config = copy.deepcopy(NANO) | {"num_hidden_layers": layers, "attn_res_block_size": block}
        config["linear_attn_config"]["full_attn_layers"] = list(mla)
        config["linear_attn_config"]["kda_layers"] = [
            number for number in range(1, layers + 1) if number not in mla
        ]
        return _generate(config | other, torch.float64)

    return make


@pytest.fixture(scope="session")
def nano() -> Model:
    """The whole k3-nano-random in FP32."""
    return _generate(NANO, torch.float32)
