"""The specialised decode step: one token of every request, all layers, in compiled units.

Owns: packed weights, step buffers, the order of units and exchanges. Does not own: which steps
run here (`plan`), caches (bound by the engine), the maths (`kernels`). Knows no engine.
Read by: the model, kernel cases.

The caches hold everything that outlives a step, in the stock layers' layout, so any step may run
here and the next one stock. Slot 0 and cache page 0 belong to the engine's null block: rows that
point there, padding among them, read it and leave it as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.kernels import compiler
from kimi_k3.kernels.attn_res import prepared as attn_res
from kimi_k3.kernels.common import Constants, Get
from kimi_k3.kernels.compiler import Kernel, Recipe
from kimi_k3.kernels.kda import prepared as kda
from kimi_k3.kernels.mla import prepared as mla
from kimi_k3.kernels.moe import prepared as moe
from kimi_k3.runtime.collective import Collective
from kimi_k3.runtime.step import DecodeStep, Rows, rows

__all__ = ["PREPARED_BATCHES", "DecodeStep", "Executor"]

PREPARED_BATCHES = tuple(range(1, 65))
"""The compiled units take any number of rows at the speed of units compiled for that number
(measured at 1 and 8 rows), so nothing needs padding by default."""


@dataclass(frozen=True)
class _Layer:
    """Packed weights of one layer and its place in the stack."""

    attention: str
    """Unit of the attention half, `kda` or `mla`."""
    mlp: tuple[str, ...]
    """Units of the MLP half."""
    opens: int | None
    """AttnRes block stored before this layer."""
    ordinal: int
    """Number of this layer among the layers of its kind."""
    sites: Tensor
    """int64 [3], see `kernels.units`."""
    attention_weights: tuple[Tensor, ...]
    mlp_weights: tuple[tuple[Tensor, ...], ...]
    """Per unit of the MLP half."""


class _Kernels(NamedTuple):
    """Compiled units of every layer; layers of one kind share theirs."""

    attention: list[Kernel]
    mlp: list[list[Kernel]]
    final: Kernel


class Executor:
    """Runs decode steps of one tensor-parallel rank on a CPU, in FP32. Not thread-safe."""

    extra_bytes: int
    """Memory held besides the engine's own weights and caches: packed copies and buffers."""

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, Tensor],
        collective: Collective,
        batches: Sequence[int] = PREPARED_BATCHES,
    ) -> None:
        """Pack `weights`: FP32 CPU tensors by checkpoint name without `language_model.`.

        Heads, expert and MLP widths are cut to this rank; router, latent projections of the MoE,
        low-rank inputs of decay gate and MLA, and norms are whole. `batches`: numbers of rows to
        prepare for; a step runs in the next larger one.
        Raises ValueError for weights that are missing, not FP32 or of another shape, for `batches`
        that are not positive, and for a number of ranks that does not divide the model.
        """
        if not batches or min(batches) < 1:
            raise ValueError(f"batches must be positive numbers of rows, got {list(batches)}")
        self.dims = dims
        self.batches = tuple(sorted(set(batches)))
        self._collective = collective
        self._constants = Constants.of(dims, collective.size)
        self._layers = [self._pack(layer, weights) for layer in range(dims.layers)]
        self._final = attn_res.pack(_getter(weights, "model."), "output_attn_res", "norm")
        self._prefix = torch.zeros(self.batches[-1], dims.hidden)
        self._bank = torch.zeros(self.batches[-1], dims.blocks, dims.hidden)
        self._caches: list[tuple[Tensor, ...]] = []
        self._page = 1
        self._kernels: _Kernels | None = None
        held = [self._prefix, self._bank, *self._final]
        for one in self._layers:
            held += [one.sites, *one.attention_weights, *(t for w in one.mlp_weights for t in w)]
        self.extra_bytes = sum(tensor.nbytes for tensor in held)

    def _pack(self, layer: int, weights: Mapping[str, Tensor]) -> _Layer:
        get, c = _getter(weights, f"model.layers.{layer}."), self._constants
        opens = self.dims.block_write(layer)
        counts = [self.dims.sources(layer), self.dims.mlp_sources(layer), opens is not None]
        is_kda = self.dims.layer_kinds[layer] == "kda"
        mlp: tuple[str, ...] = ("dense",)
        mlp_weights: tuple[tuple[Tensor, ...], ...]
        if layer in self.dims.moe_layers:
            mlp = ("moe_front", "experts", "moe_tail")
            mlp_weights = moe.pack(get, c, self._collective.rank)
            if c.tp == 1:  # nothing to exchange in between
                mlp, mlp_weights = ("moe",), (tuple(chain(*mlp_weights)),)
        else:
            mlp_weights = (moe.pack_dense(get, c),)
        return _Layer(
            attention="kda" if is_kda else "mla",
            mlp=mlp,
            opens=opens,
            ordinal=self.dims.layer_kinds[:layer].count(self.dims.layer_kinds[layer]),
            sites=torch.tensor(counts, dtype=torch.int64),
            attention_weights=kda.pack(get, c) if is_kda else mla.pack(get, c),
            mlp_weights=mlp_weights,
        )

    def bind(self, caches: Mapping[int, tuple[Tensor, Tensor] | Tensor]) -> None:
        """Use these caches from now on; `prepare` must follow.

        Per KDA layer (conv [slots, taps-1, 3*H*D], recurrent [slots, H, V, K]), per MLA layer
        [pages, page size, kv_lora + rope], all FP32, any stride from slot to slot.
        Raises ValueError for a missing layer, another shape or dtype, pages that differ in size
        between layers or do not follow each other in memory.
        """
        dims, tp = self.dims, self._constants.tp
        states = [dims.conv_state_shape(tp), dims.recurrent_state_shape(tp)]
        bound: list[tuple[Tensor, ...]] = []
        page: int | None = None
        for layer, kind in enumerate(dims.layer_kinds):
            held = caches.get(layer, ())
            tensors = (held,) if isinstance(held, Tensor) else tuple(held)
            if kind == "kda":
                _check_cache(layer, tensors, states)
            else:
                page = tensors[0].shape[1] if page is None and tensors else page
                _check_cache(layer, tensors, [(page or 0, dims.mla_row)])
                tensors = (_adjacent(layer, tensors[0]),)
            bound.append(tensors)
        self._page = page or 1
        self._caches = bound
        self._kernels = None

    def prepare(self) -> None:
        """Load every unit, compiling what the cache folder lacks; called before the first step.

        Raises RuntimeError before `bind`, and `compiler.CompileError` as `compiler.load` does.
        """
        if not self._caches:
            raise RuntimeError("bind caches before preparing")
        recipes = self._recipes()
        distinct = list(dict.fromkeys(recipes))
        kernels = dict(zip(distinct, compiler.load(distinct), strict=True))
        loaded = iter([kernels[recipe] for recipe in recipes])
        self._kernels = _Kernels(
            attention=[next(loaded) for _ in self._layers],
            mlp=[[next(loaded) for _ in layer.mlp] for layer in self._layers],
            final=next(loaded),
        )

    def _recipes(self) -> list[Recipe]:
        """What to compile, in the order of `_Kernels`; only the layout of the arguments matters."""
        c, one = self._constants, torch.zeros(1, dtype=torch.int64)
        step = DecodeStep(one, one[:, None], one, one + 1, max_seq_len=1)
        plan = rows(step, len(self.dims.kda_layers), 1, self._page)
        prefix, bank = self._prefix[:1], self._bank[:1]
        gathered, inner = torch.empty(1, c.experts + c.latent), torch.empty(1, c.shared_inter)
        summed = torch.empty(1, c.latent + c.hidden)
        calls: list[tuple[str, list[Tensor]]] = [
            (layer.attention, self._attention_inputs(number, prefix, bank, plan))
            for number, layer in enumerate(self._layers)
        ]
        for layer in self._layers:
            first = [prefix, bank, layer.sites, prefix]
            firsts = (first, [gathered, inner], [prefix, summed])
            for unit, inputs, weights in zip(layer.mlp, firsts, layer.mlp_weights, strict=False):
                calls.append((unit, [*inputs, *weights]))
        calls.append(("final", [prefix, bank, *self._final]))
        return [Recipe.of(unit, c, inputs) for unit, inputs in calls]

    def _attention_inputs(
        self, number: int, prefix: Tensor, bank: Tensor, plan: Rows
    ) -> list[Tensor]:
        layer = self._layers[number]
        inputs = [prefix, bank, layer.sites, *self._caches[number]]
        if layer.attention == "kda":
            inputs += [plan.slots[layer.ordinal], plan.owned[layer.ordinal]]
        else:
            inputs += [plan.write, plan.writable, plan.context, plan.visible]
        inputs += layer.attention_weights
        return inputs

    def run(self, hidden: Tensor, step: DecodeStep) -> Tensor:
        """Run one step: embeddings [B, hidden] -> final normalised hidden state [B, hidden].

        Both FP32; the caches are updated in place. Every rank makes the same call. Raises
        RuntimeError before `prepare` and ValueError for more rows than prepared for or another
        dtype of `hidden`.
        """
        batch = hidden.shape[0]
        if self._kernels is None:
            raise RuntimeError("prepare before running, and again after binding other caches")
        if not 1 <= batch <= self.batches[-1] or hidden.dtype != torch.float32:
            raise ValueError(
                f"prepared for 1 to {self.batches[-1]} rows of float32, "
                f"got {list(hidden.shape)} of {hidden.dtype}"
            )
        prepared = self.batches[bisect_left(self.batches, batch)]
        plan = rows(step, len(self.dims.kda_layers), prepared, self._page)
        prefix, bank = self._prefix[:prepared], self._bank[:prepared]
        prefix[:batch].copy_(hidden)
        for number, layer in enumerate(self._layers):
            if layer.opens is not None:
                bank[:, layer.opens].copy_(prefix)
            inputs = self._attention_inputs(number, prefix, bank, plan)
            (share,) = self._kernels.attention[number](inputs)
            delta = self._collective.all_reduce(share)
            self._mlp(layer, self._kernels.mlp[number], prefix, bank, delta)
        (output,) = self._kernels.final([prefix, bank, *self._final])
        return output[:batch]

    def poison(self) -> None:
        """Fill the step buffers with NaN, so that a read of an earlier step's rows would show."""
        self._prefix.fill_(float("nan"))
        self._bank.fill_(float("nan"))

    def _mlp(
        self, layer: _Layer, kernels: list[Kernel], prefix: Tensor, bank: Tensor, delta: Tensor
    ) -> None:
        """MLP half of one layer, which ends in `prefix`."""
        inputs = [prefix, bank, layer.sites, delta, *layer.mlp_weights[0]]
        if layer.mlp == ("moe",):
            kernels[0](inputs)
        elif layer.mlp == ("dense",):
            (share,) = kernels[0](inputs)
            prefix.add_(self._collective.all_reduce(share))
        else:
            front, experts, tail = kernels
            part, inner = front(inputs)
            # Compiled units trust their arguments' strides; a gather may be built by transposing.
            gathered = self._collective.all_gather(part, 1).contiguous()
            (share,) = experts([gathered, inner, *layer.mlp_weights[1]])
            tail([prefix, self._collective.all_reduce(share), *layer.mlp_weights[2]])


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


def _check_cache(layer: int, tensors: Sequence[Tensor], wanted: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError unless `tensors` are FP32 of `wanted` shapes below their first axis."""
    found = [(tuple(one.shape[1:]), one.dtype) for one in tensors]
    if found != [(shape, torch.float32) for shape in wanted]:
        raise ValueError(f"cache of layer {layer}: want {wanted} of torch.float32, got {found}")


def _adjacent(layer: int, pages: Tensor) -> Tensor:
    """[pages, page size, W] as rows [pages * page size, W]. Raises ValueError if it cannot be."""
    try:
        return pages.view(-1, pages.shape[-1])
    except RuntimeError as error:
        message = f"cache of layer {layer}: pages do not follow each other in memory"
        raise ValueError(message) from error
