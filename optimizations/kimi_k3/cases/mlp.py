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
from kimi_k3.kernels.moe import prepared
from kimi_k3.reference import moe
from kimi_k3.reference.basic import mlp
from kimi_k3.reference.weights import Scope, Weights

_SITE = ("mlp_res", "post_attention_layernorm")


class _MlpCase:
    """Prefix takes the attention's output, mix site, MLP, prefix takes the MLP's output."""

    outputs = {"y": ("row", "column")}  # noqa: RUF012 - part of the protocol, never changed
    op: str
    layer: int
    module: str

    def regimes(self) -> list[Regime]:
        """Every batch size; a layer that restarts the prefix; all depths; padding."""
        fixed = {"sources": 2, "restart": 0, "padding": 0}
        plain = [{"batch": batch} | fixed for batch in common.BATCHES]
        deep = [{"batch": 3} | fixed | {"sources": n, "restart": 1} for n in (1, 3)]
        return [*plain, *deep, {"batch": 3} | fixed | {"padding": 2}]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Prefix and attention output; blocks not yet stored hold NaN."""
        random = common.generator(seed, regime)
        return {
            **common.layer_weights(seed, self.layer, (self.module, *_SITE)),
            **common.depth(random, regime, regime["sources"]),
            "delta": torch.randn(common.requests(regime), DIMS.hidden, generator=random),
            "restart": torch.tensor(regime["restart"]),
            "padding": torch.tensor(regime["padding"]),
        }

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
        own = Scope(inputs, f"{self.module}.")
        ys = []
        for part in common.batches(inputs, "prefix", "bank", "delta"):
            rows = len(part["delta"])
            many = common.repeated(part, times, "prefix", "bank", "delta")
            prefix = many["delta"] + (0.0 if inputs["restart"] else many["prefix"])
            y = prefix + self._module(own, common.site(many, prefix, *_SITE))
            ys.append(y[:rows])
        return {"y": torch.cat(ys)}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The compiled unit, with NaN rows as padding where the regime has some."""
        batch = int(inputs["batch"])
        rows = batch + int(inputs["padding"])
        sites = torch.stack([inputs["sources"], inputs["sources"], inputs["restart"]])
        packed = self._packed(inputs)
        ys = []
        for part in common.batches(inputs, "prefix", "bank", "delta"):
            prefix, bank, delta = (
                common.padded(part[name], rows) for name in ("prefix", "bank", "delta")
            )
            for share in common.call(self.op, [prefix, bank, sites, delta, *packed]):
                # Only a unit that leaves its result to an exchange of ranks returns it.
                if share is not None:
                    prefix.add_(share)
            ys.append(prefix[:batch])
        return {"y": torch.cat(ys)}

    def _module(self, own: Weights, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _packed(self, inputs: Tensors) -> tuple[Tensor, ...]:
        raise NotImplementedError


class MoeCase(_MlpCase):
    """A latent MoE on a single rank."""

    op, layer, module = "moe", common.KDA, "block_sparse_moe"

    def _module(self, own: Weights, x: Tensor) -> Tensor:
        return moe.forward(own, DIMS, x)

    def _packed(self, inputs: Tensors) -> tuple[Tensor, ...]:
        return tuple(chain(*prepared.pack(common.getter(inputs), common.constants(), 0)))


class DenseCase(_MlpCase):
    """A plain SiTU MLP."""

    op, layer, module = "dense", common.DENSE, "mlp"

    def _module(self, own: Weights, x: Tensor) -> Tensor:
        return mlp(own, DIMS, x)

    def _packed(self, inputs: Tensors) -> tuple[Tensor, ...]:
        return prepared.pack_dense(common.getter(inputs), common.constants())
