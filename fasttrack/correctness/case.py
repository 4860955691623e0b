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

    op: str
    """Name, as in the claim's `scope.ops`."""
    outputs: Mapping[str, tuple[str, ...]]
    """Output name to axis names, e.g. ``{"y": ("row", "column")}``; the first axes are slices."""

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

    def candidate(self, inputs: Tensors) -> Tensors:
        """Outputs of the very code the specialised path runs. May change `inputs` in place."""
        ...
