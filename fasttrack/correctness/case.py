"""The kernel-case protocol: what an optimization implements so that its ops can be judged.

Cases are found through the entry-point group `fasttrack.cases`: each entry is a function that
returns a list of cases. Tensors are CPU or CUDA `torch.Tensor`s on the child's side; the referee
sees plain arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

Tensors = dict[str, Any]
Regime = Mapping[str, int]
UNTOUCHED = "untouched"
"""Name of the optional output that holds every row the op must not change."""


@runtime_checkable
class KernelCase(Protocol):
    """One op of the specialised path."""

    @property
    def op(self) -> str:
        """Name, as in the claim's `scope.ops`."""
        ...

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        """Output name to axis names, e.g. ``{"y": ("row", "column")}``; first axes are slices."""
        ...

    def regimes(self) -> Sequence[Regime]:
        """The cells, e.g. ``[{"batch": 3, "context": 128}]``."""
        ...

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Everything the op reads: weights, activations, states, caches. Same seed, same bits.

        Rows the op does not own and padding should hold NaN, so that a stray read shows.
        """
        ...

    def reference(self, inputs: Tensors) -> Tensors:
        """float64 outputs from the same operands."""
        ...

    def stock(self, inputs: Tensors) -> Tensors:
        """Outputs of the arithmetic the engine runs with the switch off, in its dtypes."""
        ...

    def stock_variant(self, inputs: Tensors) -> Tensors:
        """The same stock arithmetic for the same rows in another batch composition.

        An engine batches as requests come, so stock's own error is what it shows over compositions:
        e.g. the rows of `inputs` repeated up to a larger batch, and cut back. The yardstick is the
        larger error of `stock` and `stock_variant`, per measure.
        """
        ...

    def candidate(self, inputs: Tensors) -> Tensors:
        """Outputs of the very code the specialised path runs. May change `inputs` in place."""
        ...
