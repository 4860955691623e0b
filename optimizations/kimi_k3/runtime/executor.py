"""The specialised decode step: some tokens of every request, all layers, in compiled units.

Owns: step buffers, the order of layers and exchanges. Does not own: which steps run here (`plan`),
packed weights (`packed`), units of an attention half (`attention`), caches (bound by the engine),
the maths (`kernels`). Knows no engine. Read by: the model, kernel cases.

The caches hold everything that outlives a step, in the stock layers' layout, so any step may run
here and the next one stock. Slot 0 and cache page 0 belong to the engine's null block: rows that
point there, padding among them, read it and leave it as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.kernels import compiler
from kimi_k3.kernels.common import Constants
from kimi_k3.kernels.compiler import Kernel, Recipe
from kimi_k3.kernels.kda.prepared import KdaWeights
from kimi_k3.kernels.units import UNITS
from kimi_k3.runtime import attention, packed
from kimi_k3.runtime.collective import Collective
from kimi_k3.runtime.packed import Layer
from kimi_k3.runtime.step import DecodeStep, Rows, rows

__all__ = ["MOST_TOKENS", "PREPARED_BATCHES", "DecodeStep", "Executor"]

PREPARED_BATCHES = tuple(range(1, 65))
"""The compiled units take any number of rows at the speed of units compiled for that number
(measured at 1 and 8 rows), so nothing needs padding by default."""

MOST_TOKENS = 8
"""Largest number of tokens per request that a step may verify here."""


_Run = Callable[[int, str, list[Tensor]], list[Tensor]]
"""Runs a unit of a layer on its arguments."""


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
        tokens: int = 1,
    ) -> None:
        """Pack `weights`: FP32 CPU tensors by checkpoint name without `language_model.`.

        Heads, expert and MLP widths are cut to this rank; router, latent projections of the MoE,
        low-rank inputs of decay gate and MLA, and norms are whole. `batches`: numbers of requests
        to prepare for; a step runs in the next larger one. `tokens`: the most tokens per request a
        step may have; every number up to it is prepared.
        Raises ValueError for weights that are missing, not FP32 or of another shape, for `batches`
        that are not positive, for `tokens` outside 1 to `MOST_TOKENS`, and for a number of ranks
        that does not divide the model.
        """
        if not batches or min(batches) < 1:
            raise ValueError(f"batches must be positive numbers of rows, got {list(batches)}")
        if not 1 <= tokens <= MOST_TOKENS:
            raise ValueError(f"tokens per request must be 1 to {MOST_TOKENS}, got {tokens}")
        self.dims = dims
        self.batches = tuple(sorted(set(batches)))
        self.tokens = tokens
        self._collective = collective
        self._constants = Constants.of(dims, collective.size)
        self._layers = packed.layers(dims, self._constants, collective.rank, weights)
        self._final = packed.final(weights)
        most = self.batches[-1] * tokens
        self._prefix = torch.zeros(most, dims.hidden)
        self._bank = torch.zeros(most, dims.blocks, dims.hidden)
        self._caches: list[tuple[Tensor, ...]] = []
        self._page = 1
        self._kernels: dict[tuple[int, str], Kernel] = {}
        held = [self._prefix, self._bank, *self._final]
        held += [one for layer in self._layers for one in layer.tensors()]
        self.extra_bytes = sum(tensor.nbytes for tensor in held)

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
        self._kernels = {}

    def prepare(self, load: Callable[[list[Recipe]], list[Kernel]] = compiler.load) -> None:
        """Load every unit, compiling what the cache folder lacks; called before the first step.

        What a step calls is found by making one of nothing but padding, with units not compiled.
        `load`: where units come from, for callers that make many executors. Raises RuntimeError
        before `bind`, and `compiler.CompileError` as `compiler.load` does.
        """
        if not self._caches:
            raise RuntimeError("bind caches before preparing")
        recipes: dict[tuple[int, str], Recipe] = {}

        def record(number: int, unit: str, inputs: list[Tensor]) -> list[Tensor]:
            recipes[number, unit] = Recipe.of(unit, self._constants, inputs)
            made = UNITS[unit].function(self._constants, *inputs)
            return [made] if isinstance(made, Tensor) else list(made or ())

        for tokens in {1, self.tokens}:
            self._step(record, _Alone(self._collective.size), self._padding(tokens))
        distinct = list(dict.fromkeys(recipes.values()))
        kernels = dict(zip(distinct, load(distinct), strict=True))
        self._kernels = {key: kernels[recipe] for key, recipe in recipes.items()}

    def _padding(self, tokens: int) -> Rows:
        """A step of one request that owns nothing."""
        slots = torch.zeros(len(self.dims.kda_layers), 1, tokens, dtype=torch.int64)
        mapping, table = slots[0, 0], slots[0, :, :1]
        step = DecodeStep(slots, table, mapping, table[0] + tokens, tokens, tokens)
        return rows(step, 1, self._page)

    def run(self, hidden: Tensor, step: DecodeStep) -> Tensor:
        """Run one step: embeddings [B * tokens, hidden] -> final normalised hidden states, alike.

        Both FP32, a request's tokens one after the other; the caches are updated in place. Every
        rank makes the same call. Raises RuntimeError before `prepare` and ValueError for more
        requests or tokens than prepared for, for another dtype of `hidden`, and as `rows` does.
        """
        tokens, batch = step.tokens, step.seq_lens.shape[0]
        if not self._kernels:
            raise RuntimeError("prepare before running, and again after binding other caches")
        if (
            not 1 <= batch <= self.batches[-1]
            or not 1 <= tokens <= self.tokens
            or hidden.shape[0] != batch * tokens
            or hidden.dtype != torch.float32
        ):
            raise ValueError(
                f"prepared for 1 to {self.batches[-1]} rows of 1 to {self.tokens} tokens of "
                f"float32, got {batch} of {tokens} in {list(hidden.shape)} of {hidden.dtype}"
            )
        prepared = self.batches[bisect_left(self.batches, batch)]
        plan = rows(step, prepared, self._page)
        mine = hidden.unflatten(0, (batch, tokens)).transpose(0, 1)
        shape = plan.write.shape
        self._prefix[: tokens * prepared].unflatten(0, shape)[:, :batch].copy_(mine)
        output = self._step(self._compiled, self._collective, plan)
        return output.unflatten(0, shape)[:, :batch].transpose(0, 1).flatten(0, 1)

    def poison(self) -> None:
        """Fill the step buffers with NaN, so that a read of an earlier step's rows would show."""
        self._prefix.fill_(float("nan"))
        self._bank.fill_(float("nan"))

    def _compiled(self, number: int, unit: str, inputs: list[Tensor]) -> list[Tensor]:
        return self._kernels[number, unit](inputs)

    def _step(self, run: _Run, collective: Collective, plan: Rows) -> Tensor:
        """All layers over the buffers' first rows, token-major: [q*P, hidden]."""
        count = plan.write.numel()
        prefix, bank = self._prefix[:count], self._bank[:count]
        for number, layer in enumerate(self._layers):
            call, sites, caches = partial(run, number), layer.sites, self._caches[number]
            if layer.opens is not None:
                bank[:, layer.opens].copy_(prefix)
            own = layer.attention_weights
            if isinstance(own, KdaWeights):
                share = attention.kda(call, own, sites, caches, plan, layer.ordinal, prefix, bank)
            else:
                share = attention.mla(call, own, sites, caches[0], plan, prefix, bank)
            _mlp(call, layer, collective, prefix, bank, collective.all_reduce(share))
        (output,) = run(len(self._layers), "final", [prefix, bank, *self._final])
        return output


def _mlp(
    call: attention.Call,
    layer: Layer,
    collective: Collective,
    prefix: Tensor,
    bank: Tensor,
    delta: Tensor,
) -> None:
    """MLP half of one layer, which ends in `prefix`."""
    first = [prefix, bank, layer.sites, delta, *layer.mlp_weights[0]]
    if layer.mlp == ("moe",):
        call("moe", first)
    elif layer.mlp == ("dense",):
        (share,) = call("dense", first)
        prefix.add_(collective.all_reduce(share))
    else:
        part, inner = call("moe_front", first)
        # Compiled units trust their arguments' strides; a gather may be built by transposing.
        gathered = collective.all_gather(part, 1).contiguous()
        (share,) = call("experts", [gathered, inner, *layer.mlp_weights[1]])
        call("moe_tail", [prefix, collective.all_reduce(share), *layer.mlp_weights[2]])


class _Alone:
    """Ranks of which only this one speaks: shapes are right, values are not."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor, dim: int) -> Tensor:
        return torch.cat([tensor] * self.size, dim)


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
