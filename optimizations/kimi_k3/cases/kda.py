"""Case `kda`: attention half of a KDA layer with its states.

Owns: inputs, truth, stock arithmetic and candidate of the unit `kda`. Read by: the harness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.cases.common import DIMS, Regime, Tensors
from kimi_k3.kernels.kda import prepared
from kimi_k3.reference import kda
from kimi_k3.reference.weights import Scope


class KdaCase:
    """One token per request through mix site, KDA and output projection; states in place."""

    op = "kda"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "column"),
        "conv": ("row", "tap", "channel"),
        "state": ("row", "head", "value", "key"),
        "untouched": ("slot", "element"),
    }

    def regimes(self) -> list[Regime]:
        """Every batch size; every number of stored blocks; rows of padding behind the requests."""
        plain = [{"batch": batch, "sources": 2, "padding": 0} for batch in common.BATCHES]
        deep = [{"batch": 3, "sources": n, "padding": 0} for n in (0, 1, 3)]
        return [*plain, *deep, {"batch": 3, "sources": 2, "padding": 2}]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """States of all slots, NaN where no request of this step owns them, the null slot too."""
        random = common.generator(seed, regime)
        count = common.requests(regime)
        total = count + 4
        slots = torch.randperm(total - 1, generator=random)[:count] + 1
        states = {}
        for name, shape in {
            "conv": DIMS.conv_state_shape(),
            "recurrent": DIMS.recurrent_state_shape(),
        }.items():
            states[name] = torch.full((total, *shape), common.NAN)
            states[name][slots] = torch.randn(count, *shape, generator=random)
        own = common.layer_weights(
            seed, common.KDA, ("self_attn", "self_attention_res", "input_layernorm")
        )
        padding = torch.tensor(regime["padding"])
        depth = common.depth(random, regime, regime["sources"])
        return {**own, **depth, **states, "slots": slots, "padding": padding}

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
        own = Scope(inputs, "self_attn.")
        conv, recurrent = inputs["conv"], inputs["recurrent"]
        ys = []
        for part in common.batches(inputs, "prefix", "bank", "slots"):
            rows, slots = len(part["slots"]), part["slots"]
            many = common.repeated(part, times, "prefix", "bank", "slots")
            at = many["slots"]
            x = common.site(many, many["prefix"], "self_attention_res", "input_layernorm")
            y, new_conv, new_state = kda.step(own, DIMS, x, conv[at], recurrent[at])
            conv[slots], recurrent[slots] = new_conv[:rows], new_state[:rows]
            ys.append(y[:rows])
        return _outputs(ys, conv, recurrent, inputs["slots"])

    def candidate(self, inputs: Tensors) -> Tensors:
        """The compiled unit, with NaN rows as padding where the regime has some."""
        batch = int(inputs["batch"])
        rows = batch + int(inputs["padding"])
        conv, recurrent = common.paged(inputs["conv"]), common.paged(inputs["recurrent"])
        packed = prepared.pack(common.getter(inputs), common.constants())
        ys = []
        for part in common.batches(inputs, "prefix", "bank", "slots"):
            slots = torch.zeros(rows, dtype=torch.int64)
            slots[:batch] = part["slots"]
            tensors = [
                common.padded(part["prefix"], rows),
                common.padded(part["bank"], rows),
                torch.stack([inputs["sources"]] * 3),
                conv,
                recurrent,
                slots,
                slots > 0,
                *packed,
            ]
            (y,) = common.call("kda", tensors)
            ys.append(y[:batch])
        return _outputs(ys, conv, recurrent, inputs["slots"])


def _outputs(ys: list[Tensor], conv: Tensor, recurrent: Tensor, slots: Tensor) -> Tensors:
    others = [common.without(state, slots).float() for state in (conv, recurrent)]
    return {
        "y": torch.cat(ys),
        "conv": conv[slots],
        "state": recurrent[slots],
        "untouched": torch.cat(others, dim=1),
    }
