"""What the kernel cases share: the model they cut layers from, inputs, the compiled units.

Owns: dimensions and generated weights, poison, the engine's cache layout, calling a unit as the
executor does. Read by: the cases, tests.

The model is k3-nano cut to five layers that hold every kind once: a dense and a MoE layer behind
KDA, MLA layers, three AttnRes blocks as in k3-nano, so that the compiled units are k3-nano's own.

A cell has R requests of q tokens: several batches where one is small, R = requests(regime).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kimi_k3 import checkpoint
from kimi_k3.dims import Dims
from kimi_k3.kernels import compiler
from kimi_k3.kernels.common import Constants, Get
from kimi_k3.kernels.compiler import Kernel, Recipe
from kimi_k3.presets import NANO
from kimi_k3.reference import attn_res
from kimi_k3.reference.weights import MODEL, layer_prefix

Tensors = dict[str, Tensor]
Regime = Mapping[str, int]

BATCHES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)
TOKENS = (1, 4, 8)
"""Per request: plain decode, and verification of as many."""

GRID: tuple[Regime, ...] = tuple(
    {"batch": batch, "tokens": tokens} for tokens in TOKENS for batch in BATCHES
)

LEAST_ROWS = 16
"""Tokens of a cell. Smaller batches are run several times, each on requests of its own: the error
of 128 numbers is too uncertain to be compared with another."""

NAN = float("nan")
PROBES = 4
_OPEN: dict[Recipe, Kernel] = {}
ACTIVATIONS = ("hidden", "prefix", "delta")
PAD = "pad."
"""Before the name of an input: the rows a step has beside its requests."""


def _config() -> dict[str, Any]:
    config = copy.deepcopy(NANO) | {"num_hidden_layers": 5, "attn_res_block_size": 2}
    config["linear_attn_config"] |= {"kda_layers": [1, 2, 3], "full_attn_layers": [4, 5]}
    return config


DIMS = Dims.from_config(_config())
DENSE, KDA, MLA = 0, 2, 3
"""A layer of each kind; both of the latter have a MoE."""

PAGE = 16
"""Rows per MLA cache page, few so that short contexts span several."""

SLOT_PITCH = 128 * DIMS.mla_row
"""Elements from slot to slot of a KDA state: vLLM gives both the bytes of one cache page, and
makes pages of k3-nano 128 rows long."""


@lru_cache(maxsize=4)
def weights(seed: int) -> Mapping[str, Tensor]:
    """The checkpoint of the cut model, FP32, by full names."""
    made = checkpoint.weights(DIMS, seed)
    return {name: torch.from_numpy(array) for name, array in made.items()}


def layer_weights(seed: int, layer: int, parts: Sequence[str]) -> Tensors:
    """Weights of `layer` whose names start with one of `parts`, without the layer's prefix."""
    start = layer_prefix(layer)
    return {
        name.removeprefix(start): tensor
        for name, tensor in weights(seed).items()
        if name.startswith(tuple(start + part for part in parts))
    }


def model_weights(seed: int) -> Tensors:
    """Weights of the final mix site, without `language_model.model.`."""
    names = ("output_attn_res_norm.weight", "output_attn_res_proj.weight", "norm.weight")
    return {name: weights(seed)[MODEL + name] for name in names}


def generator(seed: int, regime: Regime) -> torch.Generator:
    """A stream of its own for every cell."""
    mixed = seed
    for value in regime.values():
        mixed = mixed * 1009 + value + 1
    return torch.Generator().manual_seed(mixed)


def requests(regime: Regime) -> int:
    """Requests R of a cell: the batch, or as many batches as give `LEAST_ROWS` tokens."""
    return regime["batch"] * max(1, LEAST_ROWS // (regime["batch"] * regime["tokens"]))


def batches(inputs: Tensors, *names: str) -> Iterator[Tensors]:
    """`inputs` batch by batch: the tensors called `names` are cut, everything else is shared."""
    batch = int(inputs["batch"])
    for start in range(0, inputs[names[0]].shape[0], batch):
        yield inputs | {name: inputs[name][start : start + batch] for name in names}


def depth(random: torch.Generator, regime: Regime, sources: int, *more: str) -> Tensors:
    """Activations of every token and `sources`, `batch`, `tokens`.

    Prefix [R, q, D], and so each of `more`; bank [R, q, N, D], NaN in blocks not yet stored. With
    `padding`, as many rows of NaN under the same names after `PAD`.
    """
    shape = (requests(regime), regime["tokens"])
    made = {"sources": torch.tensor(sources)}
    made |= {name: torch.tensor(regime[name]) for name in ("batch", "tokens")}
    made["bank"] = torch.randn(*shape, DIMS.blocks, DIMS.hidden, generator=random)
    made["bank"][:, :, sources:] = NAN
    for name in ("prefix", *more):
        made[name] = torch.randn(*shape, DIMS.hidden, generator=random)
    padding = regime.get("padding", 0)
    for name in ("prefix", "bank", *more) if padding else ():
        made[PAD + name] = made[name].new_full((padding, *made[name].shape[1:]), NAN)
    return made


def token_major(part: Tensors, name: str) -> Tensor:
    """Rows of a batch [B, q, ...] and its padding as a step lays them out: [q * P, ...]."""
    rows = part[name]
    if PAD + name in part:
        rows = torch.cat((rows, part[PAD + name]))
    return rows.transpose(0, 1).flatten(0, 1).contiguous()


def request_major(y: Tensor, part: Tensors) -> Tensor:
    """The inverse, without padding: [q * P, D] -> [B, q, D]."""
    batch, tokens = part["prefix"].shape[:2]
    return y.unflatten(0, (tokens, -1)).transpose(0, 1)[:batch]


def site(inputs: Tensors, prefix: Tensor, name: str, norm: str) -> Tensor:
    """The reference's mix site on the prefix and the stored blocks."""
    stored = [inputs["bank"].select(-2, n) for n in range(int(inputs["sources"]))]
    score = inputs[f"{name}_norm.weight"], inputs[f"{name}_proj.weight"]
    gain = inputs[f"{norm}.weight"]
    return attn_res.site(prefix, None, stored, False, *score, gain, DIMS.eps).output


def repeated(inputs: Tensors, times: int, *names: str) -> Tensors:
    """`inputs` with the rows of the tensors called `names` repeated `times` times over."""
    return inputs | {name: torch.cat([inputs[name]] * times) for name in names}


def rounded(inputs: Tensors, name: str) -> Tensors:
    """`inputs` with one operand rounded to BF16."""
    return inputs | {name: inputs[name].bfloat16().to(inputs[name].dtype)}


def scaled(inputs: Tensors, name: str, axis: int, width: int) -> Tensors:
    """`inputs` with the first `width` rows or columns, one head's, of a weight 2 % larger."""
    changed = inputs[name].clone()
    changed.narrow(axis, 0, width).mul_(1.02)
    return inputs | {name: changed}


def filled(inputs: Tensors, seed: int) -> Tensors:
    """`inputs` with finite numbers in place of all poison; a request's own NaN is none."""
    random = torch.Generator().manual_seed(seed)
    made = dict(inputs)
    for name, tensor in inputs.items():
        if tensor.is_floating_point() and name not in ACTIVATIONS:
            other = 10 * torch.randn(tensor.shape, generator=random, dtype=tensor.dtype)
            made[name] = torch.where(tensor.isnan(), other, tensor)
    return made


def moved(pool: Tensor, places: Tensor) -> Tensor:
    """`pool` [slots, ...] with every slot at its new place; `places` [slots] is a permutation."""
    made = torch.empty_like(pool)
    made[places] = pool
    return made


def shuffled(count: int, random: torch.Generator) -> Tensor:
    """A permutation of `count` slots that leaves the null slot where it is."""
    return torch.cat(
        (torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(count - 1, generator=random))
    )


def matrices(inputs: Mapping[str, Tensor]) -> int:
    """Elements of the matrices among some weights."""
    return sum(tensor.numel() for tensor in inputs.values() if tensor.dim() > 1)


def doubled(inputs: Tensors) -> Tensors:
    """The same operands in FP64."""
    return {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}


def getter(inputs: Mapping[str, Tensor]) -> Get:
    """Weights by name, for the packers."""
    return inputs.__getitem__


def constants() -> Constants:
    """Those of a single rank."""
    return Constants.of(DIMS, 1)


def load(recipes: Sequence[Recipe]) -> list[Kernel]:
    """As `compiler.load`, opening each package once per process: compiles side by side what the
    cache folder lacks."""
    missing = [one for one in recipes if one not in _OPEN]
    _OPEN.update(zip(missing, compiler.load(missing), strict=True))
    return [_OPEN[one] for one in recipes]


def call(unit: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Run a compiled unit: the package the executor loads for these arguments."""
    (kernel,) = load([Recipe.of(unit, constants(), tensors)])
    return kernel(list(tensors))


def probed(state: Tensor) -> Tensor:
    """States [..., V, K] seen through `PROBES` fixed directions of their keys: [..., V, PROBES].

    A fault that none of them shows has measure zero, and states of long verifications stay small
    enough to be compared with every planted fault.
    """
    random = torch.Generator().manual_seed(DIMS.kda_head_dim)
    directions = torch.randn(state.shape[-1], PROBES, generator=random, dtype=torch.float64)
    return (state.double() @ directions).to(state.dtype)


def paged(state: Tensor) -> Tensor:
    """A copy of `state` [slots, ...] with each slot in a page of its own, as engines lay it out."""
    slots, *shape = state.shape
    storage = state.new_zeros(slots, SLOT_PITCH)
    copied = storage[:, : state[0].numel()].unflatten(1, shape)
    return copied.copy_(state)


def without(state: Tensor, rows: Tensor) -> Tensor:
    """Rows of `state` that are not among `rows`, each flattened."""
    others = torch.ones(state.shape[0], dtype=torch.bool)
    others[rows] = False
    return state[others].flatten(1)
