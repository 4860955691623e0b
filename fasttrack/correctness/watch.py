"""What is found about the candidate's conduct in one cell, beside its numbers.

Owns the counts behind a `ConductRecord`: changed inputs and guards, poison left in outputs, late
writes, answers that do not follow their inputs, the pace of new content. Read by `cell`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fasttrack.correctness import arrays as edits
from fasttrack.correctness.arrays import Arrays
from fasttrack.correctness.case import UNTOUCHED
from fasttrack.correctness.compare import Array, coordinate
from fasttrack.correctness.recorder import Truth
from fasttrack.correctness.worker import Answer
from fasttrack.schema import Check

PACE = 3.0
"""Bound in the record; the rule has its own."""
SLACK_S = 2e-3
"""Added to both sides of a ratio of times: a clock across processes tells nothing below it."""
ESCAPED_US = 10.0
"""Likewise. Device time beyond the caller's stream: clocks agree to about a microsecond."""
NEEDS = {
    "rows": ("permuted", "hostile", "nonce", "pace"),
    "padding": ("padding",),
    "scalars": ("scalars",),
    "neighbours": ("neighbours",),
    "faults": ("faults",),
    "into": ("guards_of_outputs", "unwritten"),
    "work": ("floor",),
    "ranks": ("skew",),
}
"""Ability to the checks and probes that need it."""


class Watch:
    """Counts of one cell."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self._outputs: Mapping[str, Sequence[str]] = case["outputs"]
        self._in_place: Sequence[str] = case["in_place"]
        self._into = "into" in case["abilities"]
        self.not_offered = {
            check
            for ability, checks in NEEDS.items()
            if ability not in case["abilities"]
            for check in checks
        }
        self.places: dict[str, str] = {}
        self.device: dict[str, Any] = {}
        self.times: dict[str, list[float]] = {"first": [], "fresh": [], "again": []}
        self._found = dict.fromkeys(
            ("inputs_changed", "guards_changed", "late_writes", "stale_answers"), 0
        )
        if self._into:
            self._found |= {"guards_of_outputs": 0, "unwritten": 0}
        self._ratios: list[float] = []
        self._escaped_us = -np.inf

    def find(self, check: str, count: int, place: str) -> None:
        """Add to a check's count; the first place is kept."""
        self._found[check] = self._found.get(check, 0) + count
        if count:
            self.places.setdefault(check, place)

    def buffers(self, answer: Answer, truth: Truth) -> None:
        """Inputs, guard bytes, and poison left in buffers that were to be written."""
        self.device |= answer.device
        if "device_us" in answer.device:
            self.find("late_launches", int(answer.device["late"]), "after the call returned")
            apart = float(answer.device["device_us"]) - float(answer.device["event_us"])
            self._escaped_us = max(self._escaped_us, apart)
        for name, count in answer.changed.items():
            if name not in self._in_place:
                self.find("inputs_changed", count, f"{name}: {count} bytes")
        for name, count in answer.guards.items():
            check = "guards_of_outputs" if name.startswith("output ") else "guards_changed"
            self.find(check, count, f"around {name}: {count} bytes")
        for name in self._outputs if self._into else ():
            left = edits.poison(answer.outputs[name]) & ~edits.poison(truth.stock[name])
            if left.any():
                self.find("unwritten", int(left.sum()), self.where(name, left))

    def late(self, answer: Answer, now: Arrays) -> None:
        """Outputs were complete when the call returned."""
        for name, one in answer.outputs.items():
            mask = edits.differing(one, now[name])
            if mask.any():
                self.find("late_writes", int(mask.sum()), self.where(name, mask))

    def stale(self, answer: Answer, truth: Truth, before: Answer, was: Truth) -> None:
        """An answer with the bits of the one before, although stock's moved.

        A result that was wrong before, whatever its inputs were, did not go stale.
        """
        for name in self._outputs:
            if name == UNTOUCHED or edits.same(truth.stock[name], was.stock[name]):
                continue
            kept = edits.same(answer.outputs[name], before.outputs[name])
            if kept and was.right(name, before.outputs):
                self.find("stale_answers", 1, f"{name} did not follow its inputs")
                return

    def pace(self, fresh: Answer, again: Sequence[Answer]) -> None:
        """One round: a call with new content, and calls that repeat it."""
        self.times["fresh"].append(fresh.seconds)
        self.times["again"] += [one.seconds for one in again]
        usual = float(np.median([one.seconds for one in again]))
        self._ratios.append((fresh.seconds + SLACK_S) / (usual + SLACK_S))

    @property
    def steady(self) -> bool:
        """Whether the usual round took new content about as fast as old."""
        return float(np.median(self._ratios)) <= PACE

    def where(self, name: str, mask: Array) -> str:
        """``y[row=0,column=3]``: the first place of a mask."""
        axes = tuple(self._outputs.get(name, ()))
        first = np.unravel_index(int(np.argmax(mask)), mask.shape)
        return f"{name}[{coordinate(first, axes)}]"

    @property
    def fastest_s(self) -> float:
        """The shortest call on the referee's clock."""
        return min(seconds for own in self.times.values() for seconds in own)

    def checks(self, floor_s: float | None) -> list[Check]:
        """What the record holds; `floor_s` is the least time the device could need."""
        made = [
            Check(name=name, relation="equal", observed=count, bound=0)
            for name, count in self._found.items()
        ]
        if self._ratios:
            usual = round(float(np.median(self._ratios)), 3)
            made.append(Check(name="pace", relation="at_most", observed=usual, bound=PACE))
        if self._escaped_us > -np.inf:
            made.append(Check(name="escaped_us", relation="at_most",
                              observed=round(self._escaped_us, 3), bound=ESCAPED_US))  # fmt: skip
        if floor_s is not None:
            made.append(Check(name="floor", relation="at_least", observed=self.fastest_s,
                              bound=floor_s))  # fmt: skip
        return made
