"""The kernel-case protocol: what an optimization implements so that its ops can be judged.

Cases are found through the entry-point group `fasttrack.cases`: each entry is a function that
returns a list of cases. Tensors are CPU or CUDA `torch.Tensor`s on the child's side; the referee
sees plain arrays.

`KernelCase` is the whole duty. Everything below it is an ability: a member that a case has or has
not, found by `offered`. A check that needs an ability the case lacks is told as *not offered*, in
the records and in the report; it never counts as passed. How to write a case: docs/cases.md.
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
    """One op of the specialised path.

    Plain attributes, all optional: `in_place`, the names of inputs the op may change (any other
    input that changes is a fault); `nondeterministic`, true for an op whose bits may differ from
    call to call, within the spread of stock's own repeats; `device`, where inputs and outputs live,
    ``cpu`` or ``cuda``; `eager_only`, true for an op that no graph ever captures.
    """

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
        """Outputs of the very code the specialised path runs.

        Plain tensors of its own (exactly `torch.Tensor`, on the inputs' device, no views of an
        input that is not declared `in_place`), complete when the call returns.
        """
        ...


@runtime_checkable
class WithRows(Protocol):
    """Ability `rows`: which axis of what holds independent rows (requests, tokens).

    The referee then permutes the rows of the inputs (the outputs must be permuted alike), puts
    rows of zeros, constants, tiny, denormal and outlying values among benign ones, and changes
    single elements of them between calls.
    """

    input_rows: Mapping[str, int]
    """Input name to its row axis: every per-request input, index tensors too; no weights, and no
    state or cache that is found through an index tensor."""
    output_rows: Mapping[str, int]
    """Output name to its row axis; outputs without one are left out."""


@runtime_checkable
class WithPadding(Protocol):
    """Ability `padding`: content that the op must not depend on."""

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """The same rows with other content wherever nothing may be read: padding, rows and slots
        of nobody, cache behind the lengths (e.g. finite values in place of NaN). Every output but
        `untouched` must keep its bits."""
        ...


@runtime_checkable
class WithScalars(Protocol):
    """Ability `scalars`: values that a kernel might have frozen at its first call."""

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """Inputs of equal names, shapes and dtypes with other scalars and metadata: lengths,
        positions, slots, scales."""
        ...


@runtime_checkable
class WithNeighbours(Protocol):
    """Ability `neighbours`: shapes beside a cell's own."""

    def neighbours(self, regime: Regime) -> Sequence[Regime]:
        """Regimes one step away, e.g. batch 7 and 9 of batch 8, on either side of a tile or page
        edge. They run between calls of the cell itself."""
        ...


@runtime_checkable
class WithFaults(Protocol):
    """Ability `faults`: wrong results that only the case knows how to make."""

    def faults(self, regime: Regime) -> Sequence[str]:
        """Names of what `planted` can plant here, e.g. ``["wrong_expert", "last_tokens_lost"]``."""
        ...

    def planted(self, fault: str, inputs: Tensors) -> Tensors:
        """Stock's outputs with the fault in its arithmetic: one wrong expert, the last 1 % of a
        reduction or of the context dropped, an operand rounded to the next lower format. The cell
        must reject it."""
        ...


@runtime_checkable
class WithInto(Protocol):
    """Ability `into`: the candidate writes into buffers of the caller."""

    def candidate_into(self, inputs: Tensors, out: Tensors) -> None:
        """As `candidate`, into `out`: tensors of stock's shapes and dtypes, all poison, with guard
        bytes around them. Called in place of `candidate`."""
        ...


@runtime_checkable
class WithWork(Protocol):
    """Ability `work`: what a call cannot do without."""

    def work(self, regime: Regime) -> Mapping[str, float]:
        """Least ``bytes`` moved and ``flops`` done by one call: a time below what the device could
        need for them is not believed."""
        ...


@runtime_checkable
class WithRanks(Protocol):
    """Ability `ranks`: an exchange between ranks, all played by this process."""

    ranks: int

    def candidate_skewed(self, inputs: Tensors, delays_s: Sequence[float]) -> Tensors:
        """As `candidate`, with rank i arriving at the exchange `delays_s[i]` late. A result may
        not depend on who comes first."""
        ...


ABILITIES: Mapping[str, type] = {
    "rows": WithRows,
    "padding": WithPadding,
    "scalars": WithScalars,
    "neighbours": WithNeighbours,
    "faults": WithFaults,
    "into": WithInto,
    "work": WithWork,
    "ranks": WithRanks,
}
"""Name to protocol."""


def offered(case: KernelCase) -> list[str]:
    """Names of the abilities a case has, in the order of `ABILITIES`."""
    return [name for name, ability in ABILITIES.items() if isinstance(case, ability)]


def in_place(case: KernelCase) -> list[str]:
    """Inputs the op is declared to change."""
    return list(getattr(case, "in_place", ()))


def nondeterministic(case: KernelCase) -> bool:
    """Whether the op is declared to give other bits from call to call."""
    return bool(getattr(case, "nondeterministic", False))


def device(case: KernelCase) -> str:
    """Kind of device the case lives on."""
    return str(getattr(case, "device", "cpu"))


def eager_only(case: KernelCase) -> bool:
    """Whether the op is declared to run outside of graphs only."""
    return bool(getattr(case, "eager_only", False))
