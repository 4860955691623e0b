"""Case `kda`: attention half of a KDA layer with its states.

Owns: inputs, truth, stock arithmetic and candidate of the units `kda`, and `kda_project` with
`kda_token`. Read by: the harness.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.cases.common import DIMS, PAD, Regime, Tensors
from kimi_k3.cases.judged import Judged, work
from kimi_k3.dims import Dims
from kimi_k3.kernels.kda import prepared
from kimi_k3.reference import kda
from kimi_k3.reference.weights import Scope, Weights
from kimi_k3.runtime import attention
from kimi_k3.runtime.step import DecodeStep, Rows, rows

_PER_REQUEST = ("prefix", "bank", "slots", "accepted")
_WEIGHTS = ("self_attn", "self_attention_res", "input_layernorm")
_OWN = "self_attn."


class KdaCase(Judged):
    """q tokens per request through mix site, KDA and output projection; every token's states."""

    op = "kda"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "token", "column"),
        "conv": ("row", "token", "channel"),
        "state": ("row", "token and head", "value", "direction of keys"),
        "untouched": ("slot", "element"),
    }
    input_rows = dict.fromkeys(_PER_REQUEST, 0)
    output_rows = dict.fromkeys(("y", "conv", "state"), 0)
    planting = {  # noqa: RUF012
        "operand_bf16": lambda i: common.rounded(i, _OWN + "q_proj.weight"),
        "head_off_by_2_percent": lambda i: common.scaled(
            i, _OWN + "o_proj.weight", 1, DIMS.kda_head_dim
        ),
        "decay_without_bound": lambda i: i,
    }

    def regimes(self) -> list[Regime]:
        """The grid; every number of stored blocks; padding; more slots than tokens, as between
        verifications; keys of all tokens almost parallel."""
        plain = {"sources": 2, "padding": 0, "spare": 0, "collinear": 0}
        edges = [
            *({"tokens": 1, "sources": n} for n in (0, 1, 3)),
            *({"tokens": q, "padding": 2, "spare": s} for q, s in ((1, 0), (4, 0), (4, 4))),
            *({"tokens": q, "spare": 8 - q} for q in (1, 2, 4)),
            {"tokens": 8, "collinear": 1},
        ]
        return [*({**one, **plain} for one in common.GRID),
                *({"batch": 3} | {"tokens": 1} | plain | one for one in edges)]  # fmt: skip

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """States of all slots, NaN where nobody's live state is, the null slot too."""
        random = common.generator(seed, regime)
        count, columns = common.requests(regime), regime["tokens"] + regime["spare"]
        total = count * columns + 4
        places = torch.randperm(total - 1, generator=random)[: count * columns] + 1
        slots = places.view(count, columns)
        accepted = torch.randint(1, columns + 1, (count,), generator=random)
        made = {"slots": slots, "accepted": accepted}
        live = slots.gather(1, accepted[:, None] - 1)[:, 0]
        for name, shape in {
            "conv": DIMS.conv_state_shape(),
            "recurrent": DIMS.recurrent_state_shape(),
        }.items():
            made[name] = torch.full((total, *shape), common.NAN)
            made[name][live] = torch.randn(count, *shape, generator=random)
        own = common.layer_weights(seed, common.KDA, _WEIGHTS)
        if regime["collinear"]:
            name = _OWN + "k_proj.weight"
            one = own[name][:1] * torch.randn(len(own[name]), 1, generator=random)
            own[name] = one + 1e-3 * own[name]
        if regime["padding"]:  # what an engine left there means nothing
            made[PAD + "slots"] = slots.new_zeros(regime["padding"], columns)
            made[PAD + "accepted"] = accepted.new_full((regime["padding"],), 77)
        return {**own, **common.depth(random, regime, regime["sources"]), **made}

    def plain(self, inputs: Tensors, times: int, dims: Dims = DIMS) -> Tensors:
        """One projection of all tokens, then token by token, as the stock layer does."""
        own = Scope(inputs, _OWN)
        conv, recurrent = inputs["conv"], inputs["recurrent"]
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            count, target = len(part["slots"]), written(part)
            many = common.repeated(part, times, *_PER_REQUEST)
            live = many["slots"].gather(1, many["accepted"][:, None] - 1)[:, 0]
            x = common.site(many, many["prefix"], "self_attention_res", "input_layernorm")
            y, convs, states = verify(own, dims, x, conv[live], recurrent[live])
            conv[target], recurrent[target] = convs[:count], states[:count]
            ys.append(y[:count])
        return _outputs(ys, inputs)

    def planted(self, fault: str, inputs: Tensors) -> Tensors:
        """Without its bound the decay gate is another activation altogether."""
        if fault == "decay_without_bound":
            unbounded = replace(DIMS, gate_lower_bound=None)  # type: ignore[arg-type]
            return self.plain(inputs, 1, unbounded)
        return super().planted(fault, inputs)

    def candidate(self, inputs: Tensors) -> Tensors:
        """The compiled units, joined as the executor joins them."""
        states = common.paged(inputs["conv"]), common.paged(inputs["recurrent"])
        packed = prepared.pack(common.getter(inputs), common.constants())
        sites = torch.stack([inputs["sources"]] * 3)
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            rows_ = [common.token_major(part, name) for name in ("prefix", "bank")]
            y = attention.kda(common.call, packed, sites, states, _plan(part), 0, *rows_)
            ys.append(common.request_major(y, part))
        return _outputs(ys, inputs | {"conv": states[0], "recurrent": states[1]})

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """Every state in another slot and column, fewer stored blocks."""
        random = torch.Generator().manual_seed(seed)
        places = common.shuffled(len(inputs["conv"]), random)
        slots, old = places[inputs["slots"]], inputs["accepted"] - 1
        accepted = torch.randint(1, slots.shape[1] + 1, old.shape, generator=random)
        row = torch.arange(len(slots))
        slots[row, old], slots[row, accepted - 1] = slots[row, accepted - 1], slots[row, old]
        pools = {name: common.moved(inputs[name], places) for name in ("conv", "recurrent")}
        sources = (inputs["sources"] - 1).clamp(min=0)
        return inputs | pools | {"slots": slots, "accepted": accepted, "sources": sources}

    def work(self, regime: Regime) -> dict[str, float]:
        """Weights once, every request's state in, every token's out."""
        count, tokens = common.requests(regime), regime["tokens"]
        weights = common.matrices(common.layer_weights(0, common.KDA, _WEIGHTS))
        state = torch.Size(DIMS.recurrent_state_shape()).numel()
        return work(weights + count * (1 + tokens) * state, count * tokens * (weights + 3 * state))


def verify(
    own: Weights, dims: Dims, x: Tensor, conv: Tensor, recurrent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """x [B, q, D] -> y [B, q, D] and the states after every token, [B, q, ...]."""
    projected = kda.project(own, dims, x)
    filters = kda.conv_weight(own)
    outputs, convs, states = [], [], []
    for token in range(x.shape[1]):
        convolved, conv = kda.conv_step(projected.qkv[:, token], conv, filters)
        q, k, v = kda.normalise(convolved, dims)
        decay, beta = projected.log_decay[:, token], projected.beta[:, token]
        o, recurrent = kda.delta_step(q, k, v, decay, beta, recurrent)
        outputs.append(o)
        convs.append(conv)
        states.append(recurrent)
    y = kda.finish(own, torch.stack(outputs, 1), projected.gate)
    return y, torch.stack(convs, 1), torch.stack(states, 1)


def wide(slots: Tensor) -> Tensor:
    """`slots` as every other column of a table, the layout of an engine's slices."""
    return torch.stack((slots, slots.new_full(slots.shape, 1 << 40)), dim=-1).flatten(-2)[..., ::2]


def _plan(part: Tensors) -> Rows:
    """A step of one KDA layer; rows of padding as an engine would hand them over."""
    slots, accepted = part["slots"], part["accepted"]
    if PAD + "slots" in part:
        slots = torch.cat((slots, part[PAD + "slots"]))
        accepted = torch.cat((accepted, part[PAD + "accepted"]))
    count, tokens = len(slots), int(part["tokens"])
    step = DecodeStep(
        slots=wide(slots)[None],
        block_table=torch.zeros(count, tokens, dtype=torch.int64),
        slot_mapping=torch.zeros(count * tokens, dtype=torch.int64),
        seq_lens=torch.full((count,), tokens),
        max_seq_len=tokens,
        tokens=tokens,
        accepted=accepted if slots.shape[1] > 1 else None,
    )
    return rows(step, count, 1)


def written(inputs: Tensors) -> Tensor:
    """Slots of the states after every token, [R, q]: a lone token stays where the live state is,
    several begin with the first slot."""
    slots, tokens = inputs["slots"], int(inputs["tokens"])
    if tokens == 1:
        return slots.gather(1, inputs["accepted"][:, None] - 1)
    return slots[:, :tokens]


def _outputs(ys: list[Tensor], inputs: Tensors) -> Tensors:
    conv, recurrent, at = inputs["conv"], inputs["recurrent"], written(inputs)
    others = [common.without(state, at.flatten()).float() for state in (conv, recurrent)]
    return {
        "y": torch.cat(ys),
        "conv": conv[at].flatten(2),
        "state": common.probed(recurrent[at]).flatten(1, 2),
        "untouched": torch.cat(others, dim=1),
    }
