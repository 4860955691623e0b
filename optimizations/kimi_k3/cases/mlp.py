"""Cases `moe` and `dense`: MLP half of a layer, from the attention's output to the next prefix.

Owns: inputs, truth, stock arithmetic and candidates of the units `moe` and `dense`. Read by: the
harness.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.cases.common import DIMS, Regime, Tensors
from kimi_k3.cases.judged import Judged, work
from kimi_k3.kernels.moe import prepared
from kimi_k3.reference import moe
from kimi_k3.reference.basic import mlp
from kimi_k3.reference.weights import Scope, Weights

_SITE = ("mlp_res", "post_attention_layernorm")
_PER_REQUEST = ("prefix", "bank", "delta")
MARGIN = 1e-5
"""Least gap between the last chosen and the first unchosen expert. FP32 noise is about 1e-7, and
another expert would be as right."""


class _MlpCase(Judged):
    """Prefix takes the attention's output, mix site, MLP, prefix takes the MLP's output."""

    outputs = {"y": ("row", "token", "column")}  # noqa: RUF012 - part of the protocol
    in_place = ("prefix",)
    input_rows = dict.fromkeys(_PER_REQUEST, 0)
    output_rows = {"y": 0}  # noqa: RUF012
    layer: int
    module: str

    def regimes(self) -> list[Regime]:
        """The grid; a layer that restarts the prefix; all depths; padding."""
        fixed = {"sources": 2, "restart": 0, "padding": 0}
        edges = [
            *({"tokens": 1, "sources": n, "restart": 1} for n in (1, 3)),
            *({"tokens": q, "padding": 2} for q in (1, 4)),
        ]
        grid: list[Regime] = [{**one, **fixed} for one in common.GRID]
        return grid + [{"batch": 3} | {"tokens": 1} | fixed | one for one in edges]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Prefix and attention output; blocks not yet stored hold NaN."""
        random = common.generator(seed, regime)
        return {
            **common.layer_weights(seed, self.layer, (self.module, *_SITE)),
            **common.depth(random, regime, regime["sources"], "delta"),
            "restart": torch.tensor(regime["restart"]),
        }

    def plain(self, inputs: Tensors, times: int) -> Tensors:
        """All tokens of a batch at once: nothing joins them."""
        own = Scope(inputs, f"{self.module}.")
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            many = common.repeated(part, times, *_PER_REQUEST)
            prefix = many["delta"] + (0.0 if inputs["restart"] else many["prefix"])
            x = common.site(many, prefix, *_SITE)
            y = self._module(own, x.flatten(0, 1)).view_as(x)
            ys.append((prefix + y)[: len(part["delta"])])
        return {"y": torch.cat(ys)}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The compiled unit."""
        sites = torch.stack([inputs["sources"], inputs["sources"], inputs["restart"]])
        packed = self._packed(inputs)
        ys = []
        for part in common.batches(inputs, *_PER_REQUEST):
            prefix, bank, delta = (common.token_major(part, name) for name in _PER_REQUEST)
            for share in common.call(self.op, [prefix, bank, sites, delta, *packed]):
                # Only a unit that leaves its result to an exchange of ranks returns it.
                if share is not None:
                    prefix.add_(share)
            ys.append(common.request_major(prefix, part))
        return {"y": torch.cat(ys)}

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """A prefix that restarts where it did not, fewer stored blocks."""
        sources = (inputs["sources"] - 1).clamp(min=0)
        return inputs | {"sources": sources, "restart": 1 - inputs["restart"]}

    def work(self, regime: Regime) -> dict[str, float]:
        """Weights once, of experts those of one token; activations in and out."""
        count = common.requests(regime) * regime["tokens"]
        weights = self._weights()
        return work(weights + 3 * count * DIMS.hidden, count * weights)

    def _weights(self) -> int:
        """Elements of the matrices that a token needs."""
        return common.matrices(common.layer_weights(0, self.layer, (self.module,)))

    def _module(self, own: Weights, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _packed(self, inputs: Tensors) -> tuple[Tensor, ...]:
        raise NotImplementedError


def without_favourite(inputs: Tensors, module: str) -> Tensors:
    """The expert that the bias favours most is never chosen: its tokens go to a wrong one."""
    name = f"{module}gate.e_score_correction_bias"
    bias = inputs[name].clone()
    bias[bias.argmax()] = -float("inf")
    return inputs | {name: bias}


class MoeCase(_MlpCase):
    """A latent MoE on a single rank."""

    op, layer, module = "moe", common.KDA, "block_sparse_moe"
    planting = {  # noqa: RUF012
        "operand_bf16": lambda i: common.rounded(
            i, "block_sparse_moe.routed_expert_down_proj.weight"
        ),
        "router_bf16": lambda i: common.rounded(i, "block_sparse_moe.gate.weight"),
        "wrong_expert": lambda i: without_favourite(i, "block_sparse_moe."),
    }

    def regimes(self) -> list[Regime]:
        """Also tokens whose experts all tie, and a token of NaN among others."""
        plain: list[Regime] = [{**one, "router": 0} for one in super().regimes()]
        return plain + [{**plain[2], "router": kind} for kind in (1, 2)]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Degenerate routers: 1 ties, 2 NaN in the last request."""
        made = super().inputs(regime, seed)
        random = torch.Generator().manual_seed(seed)
        while (close := self._close_calls(made)).any():
            new = torch.randn(int(close.sum()), DIMS.hidden, generator=random)
            made["delta"][close] = new
        if regime["router"] == 1:
            for name in ("gate.weight", "gate.e_score_correction_bias"):
                weight = made[f"{self.module}.{name}"]
                made[f"{self.module}.{name}"] = torch.zeros_like(weight)
        elif regime["router"] == 2:
            made["delta"][-1] = common.NAN
        return made

    def _close_calls(self, inputs: Tensors) -> Tensor:
        """bool [R, q]: tokens whose last chosen expert rounding could exchange for another."""
        exact = common.doubled(inputs)
        prefix = exact["delta"] + (0.0 if exact["restart"] else exact["prefix"])
        logits = common.site(exact, prefix, *_SITE) @ exact[f"{self.module}.gate.weight"].t()
        keys = torch.sigmoid(logits) + exact[f"{self.module}.gate.e_score_correction_bias"]
        best = keys.sort(dim=-1, descending=True).values
        return best[..., DIMS.top_k - 1] - best[..., DIMS.top_k] < MARGIN

    def faults(self, regime: Regime) -> list[str]:
        """Where all experts tie, the router's precision does not show."""
        return [one for one in self.planting if one != "router_bf16" or regime["router"] != 1]

    def _weights(self) -> int:
        held = common.layer_weights(0, self.layer, (self.module,))
        unused = {f"{self.module}.experts.{n}." for n in range(DIMS.top_k, DIMS.experts)}
        return common.matrices(
            {name: one for name, one in held.items() if not name.startswith(tuple(unused))}
        )

    def _module(self, own: Weights, x: Tensor) -> Tensor:
        return moe.forward(own, DIMS, x)

    def _packed(self, inputs: Tensors) -> tuple[Tensor, ...]:
        return tuple(chain(*prepared.pack(common.getter(inputs), common.constants(), 0)))


class DenseCase(_MlpCase):
    """A plain SiTU MLP."""

    op, layer, module = "dense", common.DENSE, "mlp"
    planting = {  # noqa: RUF012
        "operand_bf16": lambda i: common.rounded(i, "mlp.gate_proj.weight"),
    }

    def _module(self, own: Weights, x: Tensor) -> Tensor:
        return mlp(own, DIMS, x)

    def _packed(self, inputs: Tensors) -> tuple[Tensor, ...]:
        return prepared.pack_dense(common.getter(inputs), common.constants())
