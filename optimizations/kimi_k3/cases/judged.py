"""What every kernel case does alike.

Owns: truth, stock and its variant from one plain form of the arithmetic; the abilities that need
no knowledge of the op. Read by: the cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kimi_k3.cases import common
from kimi_k3.cases.common import Regime, Tensors

Fault = Callable[[Tensors], Tensors]
"""Inputs to inputs with which stock's arithmetic gives the faulty result."""


class Judged:
    """A case whose arithmetic is `plain`, in whatever dtype its operands have."""

    op: str
    outputs: Mapping[str, tuple[str, ...]]
    input_rows: Mapping[str, int]
    output_rows: Mapping[str, int]
    planting: Mapping[str, Fault] = {}

    def plain(self, inputs: Tensors, times: int) -> Tensors:
        """Outputs, with the rows of every batch repeated `times` times and cut back."""
        raise NotImplementedError

    def reference(self, inputs: Tensors) -> Tensors:
        """FP64, all requests at once: of exact results the batch is no matter."""
        return self.plain(self._together(common.doubled(inputs)), 1)

    def stock(self, inputs: Tensors) -> Tensors:
        """The same formulas, eager FP32."""
        return self.plain(inputs, 1)

    def stock_variant(self, inputs: Tensors) -> Tensors:
        """Stock with all requests in one batch, or twice over where they are: BLAS sums up in
        another order for more rows, and then the same arithmetic has another error."""
        together = self._together(inputs)
        return self.plain(together, 2 if together["batch"] == inputs["batch"] else 1)

    def _together(self, inputs: Tensors) -> Tensors:
        name, axis = next(iter(self.input_rows.items()))
        return inputs | {"batch": torch.tensor(inputs[name].shape[axis])}

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers in place of NaN: rows of padding, blocks not stored, states and cache rows
        of nobody."""
        return common.filled(inputs, seed)

    def neighbours(self, regime: Regime) -> list[Regime]:
        """One request, token or token of context more and less."""
        least = {"batch": 1, "tokens": 1, "context": regime["tokens"]}
        most = {"tokens": common.TOKENS[-1]}
        found: list[Regime] = []
        for name, low in least.items():
            for value in (regime.get(name, 0) - 1, regime.get(name, 0) + 1):
                longer = name == "tokens" and value > regime.get("context", value)
                if name in regime and low <= value <= most.get(name, value) and not longer:
                    found.append({**regime, name: value})
        return found

    def faults(self, regime: Regime) -> list[str]:
        """Names of `planting`."""
        return list(self.planting)

    def planted(self, fault: str, inputs: Tensors) -> Tensors:
        """Stock's arithmetic with one fault."""
        return self.plain(self.planting[fault](inputs), 1)


def work(elements: float, products: float) -> dict[str, float]:
    """FP32 elements moved and products summed, as bytes and operations."""
    return {"bytes": 4.0 * elements, "flops": 2.0 * products}
