"""Kernel records of one cell: outputs measured against the reference, beside stock's own errors.

Owns what a record says; knows nothing of calls. Read by `cell`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fasttrack.correctness.arrays import Arrays, same
from fasttrack.correctness.case import UNTOUCHED
from fasttrack.correctness.compare import Array, distance, error_stats, larger, rounding_rms
from fasttrack.correctness.controls import CONTROLS
from fasttrack.schema import ErrorStats, KernelRecord
from fasttrack.schema.record import CaseStatus

RIGHT = 10.0
"""An answer within this many times stock's error was right for its inputs."""
NOTHING = ErrorStats(
    rms=0.0, q999=0.0, max=0.0, worst_slice_rms=0.0, worst_slice="", mean_signed=0.0, nonfinite=0
)


@dataclass(frozen=True)
class Truth:
    """Reference and yardstick for one set of inputs."""

    reference: Arrays
    stock: Arrays
    variant: Arrays
    _known: dict[str, tuple[ErrorStats, float]] = field(default_factory=dict)

    def exact(self, output: str) -> Array:
        """The reference, float64."""
        return self.reference[output].value().astype(np.float64)

    def yardstick(self, output: str, axes: tuple[str, ...]) -> tuple[ErrorStats, float]:
        """Stock's larger error over two compositions, and the RMS of rounding the reference."""
        if output not in self._known:
            exact, dtype = self.exact(output), self.stock[output].dtype
            errors = larger(
                error_stats(self.stock[output].value(), exact, axes, dtype),
                error_stats(self.variant[output].value(), exact, axes, dtype),
            )
            self._known[output] = errors, rounding_rms(exact, dtype)
        return self._known[output]

    def apart(self, output: str, one: Arrays, other: Arrays) -> float:
        """RMS of the difference of two results, scaled as errors are; 0 for untouched rows."""
        if output == UNTOUCHED:
            return 0.0
        return distance(one[output].value(), other[output].value(), self.exact(output))

    def right(self, output: str, answer: Arrays) -> bool:
        """Whether an answer is anywhere near the reference of these inputs."""
        exact = self.exact(output)
        mine = distance(answer[output].value(), exact, exact)
        yours = distance(self.stock[output].value(), exact, exact)
        return mine <= RIGHT * max(yours, rounding_rms(exact, self.stock[output].dtype))


class Recorder:
    """Records of one cell."""

    def __init__(
        self, op: str, cell: str, regime: Mapping[str, int], outputs: Mapping[str, Sequence[str]]
    ) -> None:
        self.op, self.cell, self.regime = op, cell, regime
        self._outputs = {name: tuple(axes) for name, axes in outputs.items()}

    def record(
        self, seed: int, output: str, status: CaseStatus = "ok", **more: Any
    ) -> KernelRecord:
        """One record as it is."""
        return KernelRecord(
            op=self.op, cell=self.cell, regime=self.regime, seed=seed, output=output,
            status=status, **more,
        )  # fmt: skip

    def measured(
        self, seed: int, output: str, value: Array, truth: Truth, **more: Any
    ) -> KernelRecord:
        """A value's error beside stock's."""
        stock, floor = truth.yardstick(output, self._outputs[output])
        dtype, axes = truth.stock[output].dtype, self._outputs[output]
        candidate = error_stats(value, truth.exact(output), axes, dtype)
        return self.record(seed, output, stock=stock, candidate=candidate, rounding_rms=floor,
                           **more)  # fmt: skip

    def compared(
        self, seed: int, outputs: Arrays, truth: Truth, *, probe: str | None = None,
        only: set[str] | None = None, **repeats: Any,
    ) -> Iterator[KernelRecord]:  # fmt: skip
        """Every output of a call, or `only` some; mappings in `repeats` hold a value per output."""
        for output in self._outputs:
            if output == UNTOUCHED:
                equal = same(outputs[output], truth.stock[output])
                yield self.record(seed, output, stock=NOTHING, candidate=NOTHING, probe=probe,
                                  untouched_equal=equal)  # fmt: skip
            elif only is None or output in only:
                own = {k: v[output] if isinstance(v, dict) else v for k, v in repeats.items()}
                value = outputs[output].value()
                yield self.measured(seed, output, value, truth, probe=probe, **own)

    def controls(self, seed: int, truth: Truth) -> Iterator[KernelRecord]:
        """The referee's planted faults, on stock's outputs."""
        for output in self._outputs:
            if output == UNTOUCHED:
                continue
            base = truth.stock[output].value().astype(np.float64)
            for name, plant in CONTROLS.items():
                planted = plant(base, truth.stock[output].dtype)
                if planted is not None:
                    yield self.measured(seed, output, planted, truth, control=name)

    def planted(self, seed: int, fault: str, made: Arrays, truth: Truth) -> Iterator[KernelRecord]:
        """A fault that the case planted."""
        for output in self._outputs:
            if output in made and output != UNTOUCHED:
                value = made[output].value()
                yield self.measured(seed, output, value, truth, control=f"case:{fault}")
