"""Cases `final` and `step`: the last mix site, and whole decode steps through the executor.

Owns: inputs, truth, stock arithmetic and candidates. Read by: the harness.

AttnRes amplifies differences from layer to layer, so `step` says that the units are joined
correctly, with layers kept quiet; how exact each is, their own cases say.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kimi_k3.cases import common, kda, mla
from kimi_k3.cases.common import DIMS, Regime, Tensors
from kimi_k3.cases.judged import Judged, work
from kimi_k3.cases.mlp import without_favourite
from kimi_k3.kernels.attn_res import prepared
from kimi_k3.reference import decoder
from kimi_k3.reference.weights import LM_HEAD, MODEL, Weights, layer_prefix
from kimi_k3.runtime.collective import SingleRank
from kimi_k3.runtime.executor import Executor

_PREFIX = "language_model."
_UNUSED = (MODEL + "embed_tokens.weight", LM_HEAD)
_OUTWARD = (".o_proj.weight", ".down_proj.weight", "routed_expert_up_proj.weight")
_PER_REQUEST = ("hidden", "slots", "accepted", *mla.REQUESTS)
_POOLS = [f"{name}.{layer}" for layer in DIMS.kda_layers for name in ("conv", "recurrent")]
_CACHES = [f"cache.{layer}" for layer in DIMS.mla_layers]
_MIDDLE = layer_prefix(common.KDA)


class FinalCase(Judged):
    """The mix of every stored block and the prefix, normalised."""

    op = "final"
    outputs = {"y": ("row", "token", "column")}  # noqa: RUF012 - part of the protocol
    input_rows = dict.fromkeys(("prefix", "bank"), 0)
    output_rows = {"y": 0}  # noqa: RUF012
    planting = {"operand_bf16": lambda i: common.rounded(i, "bank")}  # noqa: RUF012

    def regimes(self) -> list[Regime]:
        """The grid."""
        return list(common.GRID)

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """A full bank."""
        random = common.generator(seed, regime)
        depth = common.depth(random, regime, DIMS.blocks)
        return {**common.model_weights(seed), **depth}

    def plain(self, inputs: Tensors, times: int) -> Tensors:
        """The reference's mix site."""
        ys = []
        for part in common.batches(inputs, "prefix", "bank"):
            many = common.repeated(part, times, "prefix", "bank")
            y = common.site(many, many["prefix"], "output_attn_res", "norm")
            ys.append(y[: len(part["prefix"])])
        return {"y": torch.cat(ys)}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The compiled unit."""
        weights = prepared.pack(common.getter(inputs), "output_attn_res", "norm")
        ys = []
        for part in common.batches(inputs, "prefix", "bank"):
            rows = [common.token_major(part, name) for name in ("prefix", "bank")]
            (y,) = common.call("final", [*rows, *weights])
            ys.append(common.request_major(y, part))
        return {"y": torch.cat(ys)}

    def work(self, regime: Regime) -> dict[str, float]:
        """Every block and the prefix in, one row out."""
        count = common.requests(regime) * regime["tokens"] * DIMS.hidden
        return work(count * (DIMS.blocks + 2), count * 2 * (DIMS.blocks + 1))


class StepCase(Judged):
    """One step of a five-layer model, all caches included."""

    op = "step"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "token", "column"),
        "conv": ("layer", "row", "token and channel"),
        "state": ("layer", "row", "token, head, value and direction of keys"),
        "cache": ("layer", "row", "token and element"),
        "untouched": ("element",),
    }
    in_place = tuple(_CACHES)
    input_rows = dict.fromkeys(_PER_REQUEST, 0)
    output_rows = {"y": 0, "conv": 1, "state": 1, "cache": 1}  # noqa: RUF012
    planting = {  # noqa: RUF012
        "operand_bf16": lambda i: common.rounded(i, _MIDDLE + "self_attn.v_proj.weight"),
        "wrong_expert": lambda i: without_favourite(i, _MIDDLE + "block_sparse_moe."),
        "last_rows_lost": mla.without_last_rows,
    }

    def regimes(self) -> list[Regime]:
        """The grid; several pages; more prepared requests than there are."""
        plain = {"context": 40, "padding": 0}
        grid: list[Regime] = [{**one, **plain} for one in common.GRID]
        edges = [(5, 1, 150, 0), (33, 1, 140, 0), (2, 4, 150, 0)]
        edges += [(3, 1, 40, 2), (9, 1, 40, 7), (3, 4, 40, 2)]
        names = ("batch", "tokens", "context", "padding")
        return grid + [dict(zip(names, one, strict=True)) for one in edges]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Caches of every layer, slots of every KDA layer; NaN wherever no request owns a row."""
        random = common.generator(seed, regime)
        count, tokens = common.requests(regime), regime["tokens"]
        made = mla.requests(random, regime)
        total = count * tokens + 4
        for name in _CACHES:
            made[name] = mla.cache(random, made)
        accepted = torch.randint(1, tokens + 1, (count,), generator=random)
        slots = []
        for layer in DIMS.kda_layers:
            places = torch.randperm(total - 1, generator=random)[: count * tokens] + 1
            slots.append(places.view(count, tokens))
            live = slots[-1].gather(1, accepted[:, None] - 1)[:, 0]
            shapes = {"conv": DIMS.conv_state_shape(), "recurrent": DIMS.recurrent_state_shape()}
            for name, shape in shapes.items():
                state = torch.full((total, *shape), common.NAN)
                state[live] = torch.randn(count, *shape, generator=random)
                made[f"{name}.{layer}"] = state
        weights = {n: t for n, t in common.weights(seed).items() if n not in _UNUSED}
        for name, weight in weights.items():
            if name.endswith("e_score_correction_bias"):
                # Far apart: which experts a token has is not for rounding to decide, five layers
                # deep. Whether they are the right ones of all is for `moe` to say.
                weights[name] = torch.randperm(len(weight), generator=random).to(weight.dtype)
            elif name.endswith(_OUTWARD):
                # Layers that say little, so that no row's rounding grows far beyond the others'.
                weights[name] = 0.1 * weight
        scalars = {name: torch.tensor(regime[name]) for name in ("batch", "tokens", "padding")}
        hidden = torch.randn(count, tokens, DIMS.hidden, generator=random)
        at = {"slots": torch.stack(slots, dim=1), "accepted": accepted}
        return {**weights, **made, **scalars, **at, "hidden": hidden}

    def plain(self, inputs: Tensors, times: int) -> Tensors:
        """Layer by layer."""
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            many = common.repeated(part, times, *_PER_REQUEST)
            attend = partial(_attention, many)
            y = decoder.layers(inputs, DIMS, many["hidden"].flatten(0, 1), attend)
            ys.append(y.view_as(many["hidden"])[: len(part["hidden"])])
        return _outputs(ys, inputs)

    def candidate(self, inputs: Tensors) -> Tensors:
        """The executor; the buffers it pads with hold NaN."""
        own = {n.removeprefix(_PREFIX): t for n, t in inputs.items() if n.startswith(_PREFIX)}
        batch, tokens = int(inputs["batch"]), int(inputs["tokens"])
        executor = Executor(DIMS, own, SingleRank(), [batch + int(inputs["padding"])], tokens)
        held = inputs | {name: common.paged(inputs[name]) for name in _POOLS}
        caches: dict[int, tuple[Tensor, Tensor] | Tensor] = {}
        for layer in DIMS.kda_layers:
            caches[layer] = held[f"conv.{layer}"], held[f"recurrent.{layer}"]
        for layer in DIMS.mla_layers:
            caches[layer] = held[f"cache.{layer}"]
        executor.bind(caches)
        executor.prepare(common.load)
        executor.poison()
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            slots = kda.wide(part["slots"].transpose(0, 1))
            step = mla.decode_step(part, slots, part["accepted"] if tokens > 1 else None)
            y = executor.run(part["hidden"].flatten(0, 1), step)
            ys.append(y.view_as(part["hidden"]))
        return _outputs(ys, held)

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """Every state in another slot, every context on other pages and shorter."""
        random = torch.Generator().manual_seed(seed)
        places = common.shuffled(len(inputs[_POOLS[0]]), random)
        pools = {name: common.moved(inputs[name], places) for name in _POOLS}
        slots = {"slots": places[inputs["slots"]]}
        return inputs | pools | slots | mla.rearranged(inputs, _CACHES, random)


def _attention(part: Tensors, layer: int, own: Weights, x: Tensor) -> Tensor:
    """Attention of one layer on the caches of these requests.

    Repeated requests write one place several times: equal up to rounding, any of them will do.
    """
    x = x.unflatten(0, part["mapping"].shape)
    if layer in DIMS.kda_layers:
        slots = part["slots"][:, DIMS.kda_layers.index(layer)]
        conv, recurrent = part[f"conv.{layer}"], part[f"recurrent.{layer}"]
        live = slots.gather(1, part["accepted"][:, None] - 1)[:, 0]
        y, conv[slots], recurrent[slots] = kda.verify(own, DIMS, x, conv[live], recurrent[live])
    else:
        pages = part[f"cache.{layer}"]
        y, pages.flatten(0, 1)[part["mapping"]] = mla.verify(own, part, x, pages)
    return y.flatten(0, 1)


def _outputs(ys: list[Tensor], inputs: Tensors) -> Tensors:
    slots, at = inputs["slots"].transpose(0, 1), inputs["mapping"]
    pools = [(inputs[f"conv.{n}"], inputs[f"recurrent.{n}"]) for n in DIMS.kda_layers]
    caches = [inputs[name].flatten(0, 1) for name in _CACHES]
    untouched = [
        common.without(one, own.flatten())
        for held, own in zip(pools, slots, strict=True)
        for one in held
    ]
    untouched += [common.without(one, at.flatten()) for one in caches]
    layers = list(zip(pools, slots, strict=True))
    return {
        "y": torch.cat(ys),
        "conv": torch.stack([conv[own].flatten(1) for (conv, _), own in layers]),
        "state": torch.stack([common.probed(state[own]).flatten(1) for (_, state), own in layers]),
        "cache": torch.stack([one[at].flatten(1) for one in caches]),
        "untouched": torch.cat([one.flatten() for one in untouched]).float(),
    }
