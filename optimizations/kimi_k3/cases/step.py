"""Cases `final` and `step`: the last mix site, and whole decode steps through the executor.

Owns: inputs, truth, stock arithmetic and candidates. Read by: the harness.

AttnRes amplifies differences from layer to layer, so `step` says that the units are joined
correctly; how exact each is, their own cases say.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.cases.common import DIMS, Regime, Tensors
from kimi_k3.cases.mla import cache, decode_step, gathered, requests
from kimi_k3.kernels.attn_res import prepared
from kimi_k3.reference import decoder, kda, mla
from kimi_k3.reference.weights import Weights
from kimi_k3.runtime.collective import SingleRank
from kimi_k3.runtime.executor import Executor

_PREFIX = "language_model."
_PER_REQUEST = ("hidden", "slots", "lengths", "table", "mapping")


class FinalCase:
    """The mix of every stored block and the prefix, normalised."""

    op = "final"
    outputs = {"y": ("row", "column")}  # noqa: RUF012 - part of the protocol, never changed

    def regimes(self) -> list[Regime]:
        """Every batch size."""
        return [{"batch": batch} for batch in common.BATCHES]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """A full bank."""
        random = common.generator(seed, regime)
        depth = common.depth(random, regime, DIMS.blocks)
        return {**common.model_weights(seed), **depth}

    def reference(self, inputs: Tensors) -> Tensors:
        """FP64."""
        return self._plain(common.doubled(inputs), 1)

    def stock(self, inputs: Tensors) -> Tensors:
        """The same formulas, eager FP32."""
        return self._plain(inputs, 1)

    def stock_variant(self, inputs: Tensors) -> Tensors:
        """Stock with every batch repeated in a larger one."""
        return self._plain(inputs, common.copies(inputs))

    def _plain(self, inputs: Tensors, times: int) -> Tensors:
        ys = []
        for part in common.batches(inputs, "prefix", "bank"):
            many = common.repeated(part, times, "prefix", "bank")
            y = common.site(many, many["prefix"], "output_attn_res", "norm")
            ys.append(y[: len(part["prefix"])])
        return {"y": torch.cat(ys)}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The compiled unit."""
        weights = prepared.pack(common.getter(inputs), "output_attn_res", "norm")
        ys = [
            common.call("final", [part["prefix"], part["bank"], *weights])[0]
            for part in common.batches(inputs, "prefix", "bank")
        ]
        return {"y": torch.cat(ys)}


class StepCase:
    """One decode step of a five-layer model, all caches included."""

    op = "step"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "column"),
        "conv": ("layer", "row", "tap", "channel"),
        "state": ("layer", "row", "head", "value", "key"),
        "cache": ("layer", "row", "element"),
        "untouched": ("element",),
    }
    in_place = tuple(f"cache.{layer}" for layer in DIMS.mla_layers)

    def regimes(self) -> list[Regime]:
        """A few batch sizes, short and over several pages; `prepared` rows, padding included."""
        return [
            {"batch": 1, "context": 40, "prepared": 1},
            {"batch": 2, "context": 40, "prepared": 2},
            {"batch": 5, "context": 150, "prepared": 5},
            {"batch": 3, "context": 40, "prepared": 5},
            {"batch": 9, "context": 40, "prepared": 16},
            {"batch": 33, "context": 140, "prepared": 33},
        ]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Caches of every layer, slots of every KDA layer; NaN wherever no request owns a row."""
        random = common.generator(seed, regime)
        count = common.requests(regime)
        made = requests(random, count, regime["context"])
        total = count + 4
        for layer in DIMS.mla_layers:
            made[f"cache.{layer}"] = cache(random, made)
        slots = []
        for layer in DIMS.kda_layers:
            slots.append(torch.randperm(total - 1, generator=random)[:count] + 1)
            shapes = {"conv": DIMS.conv_state_shape(), "recurrent": DIMS.recurrent_state_shape()}
            for name, shape in shapes.items():
                state = torch.full((total, *shape), common.NAN)
                state[slots[-1]] = torch.randn(count, *shape, generator=random)
                made[f"{name}.{layer}"] = state
        return {
            **common.weights(seed),
            **made,
            "slots": torch.stack(slots, dim=1),
            "hidden": torch.randn(count, DIMS.hidden, generator=random),
            "batch": torch.tensor(regime["batch"]),
            "prepared": torch.tensor(regime["prepared"]),
        }

    def reference(self, inputs: Tensors) -> Tensors:
        """FP64."""
        return self._plain(common.doubled(inputs), 1)

    def stock(self, inputs: Tensors) -> Tensors:
        """Layer by layer, eager FP32."""
        return self._plain(inputs, 1)

    def stock_variant(self, inputs: Tensors) -> Tensors:
        """Stock with every batch repeated in a larger one."""
        return self._plain(inputs, common.copies(inputs))

    def _plain(self, inputs: Tensors, times: int) -> Tensors:
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            many = common.repeated(part, times, *_PER_REQUEST)
            attention = partial(_attention, many)
            y = decoder.layers(inputs, DIMS, many["hidden"], attention)
            ys.append(y[: len(part["hidden"])])
        return _outputs(ys, inputs)

    def candidate(self, inputs: Tensors) -> Tensors:
        """The executor; the buffers it pads with hold NaN."""
        own = {n.removeprefix(_PREFIX): t for n, t in inputs.items() if n.startswith(_PREFIX)}
        prepared_rows = int(inputs["prepared"])
        executor = Executor(DIMS, own, SingleRank(), [prepared_rows])
        caches: dict[int, tuple[Tensor, Tensor] | Tensor] = {}
        for layer in DIMS.kda_layers:
            states = [common.paged(inputs[f"{name}.{layer}"]) for name in ("conv", "recurrent")]
            inputs[f"conv.{layer}"], inputs[f"recurrent.{layer}"] = states
            caches[layer] = (states[0], states[1])
        for layer in DIMS.mla_layers:
            caches[layer] = inputs[f"cache.{layer}"]
        executor.bind(caches)
        executor.prepare()
        executor.poison()
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            step = decode_step(part, part["slots"].t())
            ys.append(executor.run(part["hidden"], step))
        return _outputs(ys, inputs)


def _attention(part: Tensors, layer: int, own: Weights, x: Tensor) -> Tensor:
    """Attention of one layer on the caches of these requests.

    Repeated requests write one place several times: equal up to rounding, any of them will do.
    """
    if layer in DIMS.kda_layers:
        at = part["slots"][:, DIMS.kda_layers.index(layer)]
        conv, recurrent = part[f"conv.{layer}"], part[f"recurrent.{layer}"]
        y, conv[at], recurrent[at] = kda.step(own, DIMS, x, conv[at], recurrent[at])
        return y
    flat, mapping = part[f"cache.{layer}"].flatten(0, 1), part["mapping"]
    past = gathered(part, part[f"cache.{layer}"])
    y, flat[mapping] = mla.step(own, DIMS, x, past, part["lengths"] - 1)
    return y


def _outputs(ys: list[Tensor], inputs: Tensors) -> Tensors:
    slots = inputs["slots"].t()
    conv = [inputs[f"conv.{layer}"] for layer in DIMS.kda_layers]
    state = [inputs[f"recurrent.{layer}"] for layer in DIMS.kda_layers]
    caches = [inputs[f"cache.{layer}"].flatten(0, 1) for layer in DIMS.mla_layers]
    untouched = [
        common.without(one, at)
        for held in (conv, state)
        for one, at in zip(held, slots, strict=True)
    ]
    untouched += [common.without(one, inputs["mapping"]) for one in caches]
    return {
        "y": torch.cat(ys),
        "conv": torch.stack([one[at] for one, at in zip(conv, slots, strict=True)]),
        "state": torch.stack([one[at] for one, at in zip(state, slots, strict=True)]),
        "cache": torch.stack([one[inputs["mapping"]] for one in caches]),
        "untouched": torch.cat([one.flatten() for one in untouched]).float(),
    }
