"""Names and shapes of the released checkpoint's text decoder, and reading one.

Owns: which tensors exist, how they are named, whether a set of them is complete. Does not own:
what they do. Read by: the other reference modules, the checkpoint writer, weight loaders.

Source of the names: the released Kimi K3 checkpoint (quantised experts are not covered here).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kimi_k3.dims import Dims

PREFIX = "language_model."
MODEL = PREFIX + "model."
LM_HEAD = PREFIX + "lm_head.weight"

Shape = tuple[int, ...]


class Weights(Protocol):
    """Anything that gives a tensor by name: a dictionary or a `Scope` of one."""

    def __getitem__(self, name: str, /) -> Tensor:
        """The tensor called `name`. Raises KeyError."""
        ...


class Scope:
    """View of `weights` in which every name starts with `prefix`, as submodules see it."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        """Prepend `prefix` to every name asked for."""
        self._weights = weights
        self._prefix = prefix

    def __getitem__(self, name: str, /) -> Tensor:
        """The tensor called prefix + `name`. Raises KeyError with the full name."""
        return self._weights[self._prefix + name]


def layer_prefix(layer: int) -> str:
    """Common start of the names of 0-based `layer`."""
    return f"{MODEL}layers.{layer}."


def shapes(dims: Dims) -> dict[str, Shape]:
    """Every tensor of an unsharded checkpoint and its shape, in layer order.

    `A_log` is given its used length, one entry per head; a checkpoint may store it longer.
    """
    found: dict[str, Shape] = {MODEL + "embed_tokens.weight": (dims.vocab, dims.hidden)}
    for layer in range(dims.layers):
        for name, shape in _layer_shapes(dims, layer):
            found[layer_prefix(layer) + name] = shape
    found[MODEL + "output_attn_res_norm.weight"] = (dims.hidden,)
    found[MODEL + "output_attn_res_proj.weight"] = (1, dims.hidden)
    found[MODEL + "norm.weight"] = (dims.hidden,)
    found[LM_HEAD] = (dims.vocab, dims.hidden)
    return found


def _layer_shapes(dims: Dims, layer: int) -> Iterator[tuple[str, Shape]]:
    hidden = dims.hidden
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    for site in ("self_attention_res", "mlp_res"):
        yield f"{site}_norm.weight", (hidden,)
        yield f"{site}_proj.weight", (1, hidden)
    attention = _kda_shapes if dims.layer_kinds[layer] == "kda" else _mla_shapes
    for name, shape in attention(dims):
        yield f"self_attn.{name}", shape
    if layer in dims.moe_layers:
        for name, shape in _moe_shapes(dims):
            yield f"block_sparse_moe.{name}", shape
    else:
        for name, shape in _mlp_shapes(hidden, dims.dense_inter):
            yield f"mlp.{name}", shape


def _kda_shapes(dims: Dims) -> Iterator[tuple[str, Shape]]:
    width, rank = dims.kda_width, dims.decay_rank
    for name in ("q", "k", "v"):
        yield f"{name}_proj.weight", (width, dims.hidden)
        yield f"{name}_conv1d.weight", (width, 1, dims.conv)
    yield "f_a_proj.weight", (rank, dims.hidden)
    yield "f_b_proj.weight", (width, rank)
    yield "b_proj.weight", (dims.kda_heads, dims.hidden)
    yield "g_proj.weight", (width, dims.hidden)
    yield "A_log", (dims.kda_heads,)
    yield "dt_bias", (width,)
    yield "o_norm.weight", (dims.kda_head_dim,)
    yield "o_proj.weight", (dims.hidden, width)


def _mla_shapes(dims: Dims) -> Iterator[tuple[str, Shape]]:
    heads, values = dims.mla_heads, dims.mla_heads * dims.v_head_dim
    yield "q_a_proj.weight", (dims.q_lora, dims.hidden)
    yield "q_a_layernorm.weight", (dims.q_lora,)
    yield "q_b_proj.weight", (heads * dims.qk_head_dim, dims.q_lora)
    yield "kv_a_proj_with_mqa.weight", (dims.mla_row, dims.hidden)
    yield "kv_a_layernorm.weight", (dims.kv_lora,)
    yield "kv_b_proj.weight", (heads * (dims.nope + dims.v_head_dim), dims.kv_lora)
    yield "g_proj.weight", (values, dims.hidden)
    yield "o_proj.weight", (dims.hidden, values)


def _mlp_shapes(hidden: int, inter: int) -> Iterator[tuple[str, Shape]]:
    yield "gate_proj.weight", (inter, hidden)
    yield "up_proj.weight", (inter, hidden)
    yield "down_proj.weight", (hidden, inter)


def _moe_shapes(dims: Dims) -> Iterator[tuple[str, Shape]]:
    yield "gate.weight", (dims.experts, dims.hidden)
    yield "gate.e_score_correction_bias", (dims.experts,)
    yield "routed_expert_down_proj.weight", (dims.latent, dims.hidden)
    yield "routed_expert_norm.weight", (dims.latent,)
    yield "routed_expert_up_proj.weight", (dims.hidden, dims.latent)
    for expert in range(dims.experts):
        yield f"experts.{expert}.w1.weight", (dims.expert_inter, dims.latent)
        yield f"experts.{expert}.w2.weight", (dims.latent, dims.expert_inter)
        yield f"experts.{expert}.w3.weight", (dims.expert_inter, dims.latent)
    for name, shape in _mlp_shapes(dims.hidden, dims.shared_inter):
        yield f"shared_experts.{name}", shape


class CheckpointError(ValueError):
    """Tensors that do not match the configuration; the message names every one."""


def check(dims: Dims, found: Mapping[str, Shape]) -> None:
    """Raise one `CheckpointError` naming every missing, unknown or wrong-shaped tensor."""
    wanted = shapes(dims)
    problems = [f"missing: {name} {list(wanted[name])}" for name in wanted if name not in found]
    problems += [f"unknown: {name} {list(found[name])}" for name in found if name not in wanted]
    for name, shape in wanted.items():
        if name in found and not _fits(name, tuple(found[name]), shape):
            problems.append(f"shape of {name}: got {list(found[name])}, want {list(shape)}")
    if problems:
        lines = "\n  - ".join(problems)
        raise CheckpointError(f"checkpoint does not match its config:\n  - {lines}")


def _fits(name: str, found: Shape, wanted: Shape) -> bool:
    # The released checkpoint pads A_log with zeros beyond the last head.
    if name.endswith(".A_log"):
        return len(found) == 1 and found[0] >= wanted[0]
    return found == wanted


def load(folder: str | Path, dtype: torch.dtype = torch.float32) -> tuple[Dims, dict[str, Tensor]]:
    """Read `config.json` and every `*.safetensors` of `folder`, converted to `dtype`.

    `A_log` is cut to one entry per head. Raises ValueError for a folder, config or tensor set that
    is missing, unreadable or wrong, naming everything at once.
    """
    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {folder / 'config.json'}: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{folder / 'config.json'} is not a JSON object")
    dims = Dims.from_config(config)
    raw: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as tensors:
                raw.update({name: tensors.get_tensor(name) for name in tensors.keys()})  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ValueError(f"cannot read {path}: {error}") from error
    check(dims, {name: tuple(tensor.shape) for name, tensor in raw.items()})
    for name, tensor in raw.items():
        cut = tensor[: dims.kda_heads] if name.endswith(".A_log") else tensor
        raw[name] = cut.to(dtype)
    return dims, raw
