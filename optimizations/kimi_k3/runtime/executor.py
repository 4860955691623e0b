"""The specialised decode step: some tokens of every request, all layers, in compiled units.

Owns: step buffers, the order of units and exchanges. Does not own: which steps run here (`plan`),
packed weights (`packed`), caches (bound by the engine), the maths (`kernels`). Knows no engine.
Read by: the model, kernel cases.

The caches hold everything that outlives a step, in the stock layers' layout, so any step may run
here and the next one stock. Slot 0 and cache page 0 belong to the engine's null block: rows that
point there, padding among them, read it and leave it as it is.

Rows of a step are token-major, the first token of every request first: then each token's rows
follow each other in memory, as the units that take one token of every request want them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kimi_k3.dims import Dims
from kimi_k3.kernels import compiler
from kimi_k3.kernels.common import Constants
from kimi_k3.kernels.compiler import Kernel, Recipe
from kimi_k3.kernels.kda.prepared import KdaWeights
from kimi_k3.kernels.kda.prepared import widths as kda_widths
from kimi_k3.kernels.oproj.portable import partial
from kimi_k3.runtime import packed
from kimi_k3.runtime.collective import Collective
from kimi_k3.runtime.packed import Layer
from kimi_k3.runtime.step import DecodeStep, Rows, rows

__all__ = ["MOST_TOKENS", "PREPARED_BATCHES", "DecodeStep", "Executor"]

PREPARED_BATCHES = tuple(range(1, 65))
"""The compiled units take any number of rows at the speed of units compiled for that number
(measured at 1 and 8 rows), so nothing needs padding by default."""

MOST_TOKENS = 8
"""Largest number of tokens per request that a step may verify here."""


class _Call(NamedTuple):
    """A unit and its arguments, by which its package is found and called."""

    unit: str
    inputs: list[Tensor]


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
        self._kernels: dict[tuple[str, int], Kernel] = {}
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

    def prepare(self) -> None:
        """Load every unit, compiling what the cache folder lacks; called before the first step.

        Raises RuntimeError before `bind`, and `compiler.CompileError` as `compiler.load` does.
        """
        if not self._caches:
            raise RuntimeError("bind caches before preparing")
        recipes = {
            (call.unit, number): Recipe.of(call.unit, self._constants, call.inputs)
            for number, call in self._calls()
        }
        distinct = list(dict.fromkeys(recipes.values()))
        kernels = dict(zip(distinct, compiler.load(distinct), strict=True))
        self._kernels = {key: kernels[recipe] for key, recipe in recipes.items()}

    def _calls(self) -> Iterator[tuple[int, _Call]]:
        """Every unit with the layer it serves; only the layout of the arguments matters."""
        c, prefix, bank = self._constants, self._prefix[:1], self._bank[:1]
        one = torch.ones(1, dtype=torch.int64)
        slots = torch.zeros(len(self.dims.kda_layers), 1, 1, dtype=torch.int64)
        plan = rows(DecodeStep(slots, one[:, None], one, one, max_seq_len=1), 1, self._page)
        gathered, inner = torch.empty(1, c.experts + c.latent), torch.empty(1, c.shared_inter)
        summed = torch.empty(1, c.latent + c.hidden)
        for number, layer in enumerate(self._layers):
            if layer.attention == "mla":
                yield number, self._mla(number, prefix, bank, plan)
            else:
                yield number, self._kda(number, prefix, bank, plan)
                if self.tokens > 1:
                    yield number, self._project(number, prefix, bank)
                    projected = torch.empty(1, sum(kda_widths(c)))
                    yield number, self._token(number, projected, plan, 0)
            first = [prefix, bank, layer.sites, prefix]
            firsts = (first, [gathered, inner], [prefix, summed])
            for unit, inputs, weights in zip(layer.mlp, firsts, layer.mlp_weights, strict=False):
                yield number, _Call(unit, [*inputs, *weights])
        yield len(self._layers), _Call("final", [prefix, bank, *self._final])

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
        count = tokens * prepared
        prefix, bank = self._prefix[:count], self._bank[:count]
        mine = hidden.unflatten(0, (batch, tokens)).transpose(0, 1)
        prefix.unflatten(0, (tokens, prepared))[:, :batch].copy_(mine)
        for number, layer in enumerate(self._layers):
            if layer.opens is not None:
                bank[:, layer.opens].copy_(prefix)
            delta = self._collective.all_reduce(self._attend(number, prefix, bank, plan))
            self._mlp(number, prefix, bank, delta)
        (output,) = self._call(len(self._layers), _Call("final", [prefix, bank, *self._final]))
        return output.unflatten(0, (tokens, prepared))[:, :batch].transpose(0, 1).flatten(0, 1)

    def poison(self) -> None:
        """Fill the step buffers with NaN, so that a read of an earlier step's rows would show."""
        self._prefix.fill_(float("nan"))
        self._bank.fill_(float("nan"))

    def _call(self, number: int, call: _Call) -> list[Tensor]:
        return self._kernels[call.unit, number](call.inputs)

    # ---- attention half ---------------------------------------------------------------------------

    def _attend(self, number: int, prefix: Tensor, bank: Tensor, plan: Rows) -> Tensor:
        """This rank's share of the attention's output, all tokens."""
        if self._layers[number].attention == "mla":
            (share,) = self._call(number, self._mla(number, prefix, bank, plan))
            return share
        tokens, requests = plan.write.shape
        if tokens == 1:
            (share,) = self._call(number, self._kda(number, prefix, bank, plan))
            return share
        (projected,) = self._call(number, self._project(number, prefix, bank))
        heads = [
            self._call(number, self._token(number, part, plan, token))[0]
            for token, part in enumerate(projected.split(requests))
        ]
        # One product alone: a package of its own would be that same call.
        return partial(torch.cat(heads), self._kda_weights(number).out_proj)

    def _kda_weights(self, number: int) -> KdaWeights:
        weights = self._layers[number].attention_weights
        assert isinstance(weights, KdaWeights)
        return weights

    def _kda(self, number: int, prefix: Tensor, bank: Tensor, plan: Rows) -> _Call:
        layer = self._layers[number]
        at = [plan.source[layer.ordinal], plan.owned[layer.ordinal, 0]]
        inputs = [prefix, bank, layer.sites, *self._caches[number], *at]
        return _Call("kda", inputs + self._kda_weights(number).flat())

    def _project(self, number: int, prefix: Tensor, bank: Tensor) -> _Call:
        own = self._kda_weights(number).row
        return _Call("kda_project", [prefix, bank, self._layers[number].sites, *own])

    def _token(self, number: int, projected: Tensor, plan: Rows, token: int) -> _Call:
        """Token `token` goes on from where the one before it left its states."""
        layer = self._layers[number].ordinal
        source = plan.slots[layer, token - 1] if token else plan.source[layer]
        at = [source, plan.slots[layer, token], plan.owned[layer, token]]
        own = self._kda_weights(number).token
        return _Call("kda_token", [projected, *self._caches[number], *at, *own])

    def _mla(self, number: int, prefix: Tensor, bank: Tensor, plan: Rows) -> _Call:
        layer, shape = self._layers[number], plan.write.shape
        inputs = [prefix.unflatten(0, shape), bank.unflatten(0, shape), layer.sites]
        at = [plan.write, plan.writable, plan.context, plan.visible]
        return _Call("mla", [*inputs, *self._caches[number], *at, *layer.attention_weights])

    # ---- MLP half ---------------------------------------------------------------------------------

    def _mlp(self, number: int, prefix: Tensor, bank: Tensor, delta: Tensor) -> None:
        """MLP half of one layer, which ends in `prefix`."""
        layer = self._layers[number]
        first = [prefix, bank, layer.sites, delta, *layer.mlp_weights[0]]
        if layer.mlp == ("moe",):
            self._call(number, _Call("moe", first))
        elif layer.mlp == ("dense",):
            (share,) = self._call(number, _Call("dense", first))
            prefix.add_(self._collective.all_reduce(share))
        else:
            part, inner = self._call(number, _Call("moe_front", first))
            # Compiled units trust their arguments' strides; a gather may be built by transposing.
            gathered = self._collective.all_gather(part, 1).contiguous()
            experts = _Call("experts", [gathered, inner, *layer.mlp_weights[1]])
            summed = self._collective.all_reduce(self._call(number, experts)[0])
            self._call(number, _Call("moe_tail", [prefix, summed, *layer.mlp_weights[2]]))


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
