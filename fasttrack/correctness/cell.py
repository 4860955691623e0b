"""One cell of the kernel referee: what is asked of the candidate there, and what is recorded.

Owns the order of calls. Every seed is compared with reference and stock. The first seeds also plant
faults and send probes: rows in another order, hostile rows, a single changed element, other scalars
and shapes. The first one watches conduct: inputs, guards, late writes, stale answers, repeats.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fasttrack.correctness import arrays as edits
from fasttrack.correctness.arrays import Arrays
from fasttrack.correctness.case import UNTOUCHED
from fasttrack.correctness.compare import (
    Array,
    coordinate,
    distance,
    error_stats,
    larger,
    rounding_rms,
)
from fasttrack.correctness.controls import CONTROLS
from fasttrack.correctness.worker import STATUS, Answer, Caller, CallFailed, Maker, Worker
from fasttrack.errors import FasttrackError
from fasttrack.schema import Check, ConductRecord, ErrorStats, KernelRecord, Record
from fasttrack.schema.record import CaseStatus

PROBED_SEEDS = 2
"""Seeds that plant faults and send probes: their findings are far off, or the cap finds them."""
ROUNDS, AGAIN = 3, 3
"""Rounds of one call with new content and this many with the same."""
QUIET_S = 0.03
"""How long the referee waits before it reads outputs again."""
SLOTS, SLOT_BYTES = 8, 2**29
"""Sets of buffers at addresses of their own, and what they may take together."""
MOST_NEIGHBOURS = 2
STOCK_REPEATS = 8
RIGHT = 10.0
"""An answer within this many times stock's error was right for its inputs."""
NEEDS = {
    "rows": ("permuted", "hostile", "nonce", "pace"),
    "padding": ("padding",),
    "scalars": ("scalars",),
    "neighbours": ("neighbours",),
    "faults": ("faults",),
    "into": ("guards_of_outputs", "unwritten"),
    "work": ("floor",),
}
"""Ability to the checks and probes that need it."""
NOTHING = ErrorStats(
    rms=0.0, q999=0.0, max=0.0, worst_slice_rms=0.0, worst_slice="", mean_signed=0.0, nonfinite=0
)


@dataclass(frozen=True)
class Truth:
    """Reference and yardstick for one set of inputs."""

    reference: Arrays
    stock: Arrays
    variant: Arrays


class Unjudged(Exception):
    """The case's own inputs, reference or stock failed."""


class CellRun:
    """One cell from its first call to its conduct record."""

    def __init__(
        self, referee: Worker, candidate: Worker, case: Mapping[str, Any], cell: str,
        regime: Mapping[str, int], repeats: int,
    ) -> None:  # fmt: skip
        self._case, self._cell, self._regime = case, cell, regime
        self._op: str = case["op"]
        self._abilities: list[str] = case["abilities"]
        self._maker, self._caller = Maker(referee, self._op), Caller(candidate, self._op)
        self._repeats = repeats
        self._peaks = candidate
        self._free: bool = case["nondeterministic"]
        self._not_offered = {
            check
            for ability, checks in NEEDS.items()
            if ability not in self._abilities
            for check in checks
        }
        self._found: dict[str, int] = dict.fromkeys(
            ("inputs_changed", "guards_changed", "late_writes", "stale_answers"), 0
        )
        self._ratios: list[float] = []
        self._places: dict[str, str] = {}
        self._times: dict[str, list[float]] = {"first": [], "fresh": [], "again": []}
        self._device: dict[str, Any] = {}
        self._work: Mapping[str, float] = {}
        self._before: tuple[Answer, Truth] | None = None
        self._part = "inputs"
        self.hung = False
        """Whether a call of this cell never came back."""
        if "into" in self._abilities:
            self._found |= {"guards_of_outputs": 0, "unwritten": 0}

    def run(self, seeds: Sequence[int]) -> Iterator[Record]:
        """Records of every seed, and of the cell's conduct when nothing failed.

        A seed that gives nothing to compare is one record; a hang ends the cell.
        """
        failed = False
        for index, seed in enumerate(seeds):
            try:
                yield from self._seed(seed, index)
                continue
            except CallFailed as problem:
                status: CaseStatus = problem.status
                message = f"{self._part}: {problem}"
            except FasttrackError as error:
                status, message = STATUS.get(error.code, "raised"), f"{self._part}: {error}"
                self.hung = error.code == "ENG-004"
            except (KeyError, TypeError, ValueError, IndexError) as error:
                status, message = "malformed", f"{self._part}: {type(error).__name__}: {error}"
            except Unjudged as problem:
                status, message = "unjudged", str(problem)
            if not self._part.startswith("candidate"):
                status = "unjudged"
            failed = True
            self._before = None
            yield self._record(seed, "*", status, message=message[:2000])
            if self.hung:
                return
        if not failed:
            yield self._conduct(seeds[0])

    def _seed(self, seed: int, index: int) -> Iterator[Record]:
        self._part = "inputs"
        inputs = self._maker.inputs(self._regime, seed)
        truth = self._truth()
        base = None
        self._part = "candidate"
        if index == 0 or self._before is None:
            self._caller.begin(inputs, self._wanted(truth.stock))
        else:
            self._caller.hold(inputs, self._wanted(truth.stock))
        base = self._caller.call(inspect=True)
        self._watch(base, truth)
        repeats: dict[str, Any] = {}
        if index == 0:
            self._times["first"].append(base.seconds)
            self._late(base)
            repeats = self._repeat(base, truth, inputs)
        yield from self._compare(seed, base.outputs, truth, **repeats)
        if index < PROBED_SEEDS:
            yield from self._controls(seed, truth)
            yield from self._probes(seed, index, inputs, base, truth)
        self._before = (base, truth)

    def _truth(self) -> Truth:
        made: dict[str, Arrays] = {}
        for part in ("reference", "stock", "stock_variant"):
            self._part = part
            made[part] = self._maker.run(part)
        truth = Truth(made["reference"], made["stock"], made["stock_variant"])
        self._part = "stock"
        expected = self._case["outputs"]
        if not set(expected) - {UNTOUCHED}:
            raise Unjudged("the case names no output to compare")
        for name in expected:
            if name not in truth.stock:
                raise Unjudged(f"stock: output {name!r} is missing")
            shape = truth.stock[name].shape
            if not truth.stock[name].data:
                raise Unjudged(f"output {name!r} is empty")
            for part in ("reference", "stock_variant") if name != UNTOUCHED else ():
                if name not in made[part]:
                    raise Unjudged(f"{part}: output {name!r} is missing")
                if made[part][name].shape != shape:
                    raise Unjudged(
                        f"{part}: shape of {name} is {made[part][name].shape}, stock's {shape}"
                    )
        return truth

    def _wanted(self, stock: Arrays) -> Arrays:
        return {name: stock[name] for name in self._case["outputs"]}

    # Conduct

    def _watch(self, answer: Answer, truth: Truth) -> None:
        """Inputs, guards, and whether the answer is that of the inputs before."""
        for name, count in answer.changed.items():
            if name not in self._case["in_place"]:
                self._find("inputs_changed", count, f"{name}: {count} bytes")
        self._watch_buffers(answer, truth)
        self._device |= answer.device
        if self._before is not None:
            before, truth_before = self._before
            self._stale(answer, truth, before, truth_before)

    def _stale(self, answer: Answer, truth: Truth, before: Answer, was: Truth) -> None:
        for name in self._case["outputs"]:
            if name == UNTOUCHED or edits.same(truth.stock[name], was.stock[name]):
                continue
            if not edits.same(answer.outputs[name], before.outputs[name]):
                continue
            # A result that is wrong whatever the inputs did not go stale.
            if self._right(name, before, was):
                self._find("stale_answers", 1, f"{name} did not follow its inputs")
                return

    def _right(self, name: str, answer: Answer, truth: Truth) -> bool:
        exact = truth.reference[name].value().astype(np.float64)
        mine = distance(answer.outputs[name].value(), exact, exact)
        yours = distance(truth.stock[name].value(), exact, exact)
        return mine <= RIGHT * max(yours, rounding_rms(exact, truth.stock[name].dtype))

    def _find(self, check: str, count: int, place: str) -> None:
        self._found[check] = self._found.get(check, 0) + count
        if count:
            self._places.setdefault(check, place)

    def _late(self, answer: Answer) -> None:
        """Outputs must be complete when the call returns."""
        time.sleep(QUIET_S)
        now = self._caller.reread()
        for name, one in answer.outputs.items():
            mask = edits.differing(one, now[name])
            if mask.any():
                self._find("late_writes", int(mask.sum()), self._where(name, mask))

    def _where(self, name: str, mask: Array) -> str:
        axes = tuple(self._case["outputs"].get(name, ()))
        first = np.unravel_index(int(np.argmax(mask)), mask.shape)
        return f"{name}[{coordinate(first, axes)}]"

    def _repeat(self, base: Answer, truth: Truth, inputs: Arrays) -> dict[str, Any]:
        """Repeats under jitter, at other addresses; then rounds of new and old content."""
        size = sum(len(one.data) for one in inputs.values())
        slots = max(2, min(SLOTS, SLOT_BYTES // max(1, size)))
        equal, apart = 0, dict.fromkeys(self._case["outputs"], 0.0)
        for number in range(self._repeats):
            answer = self._caller.call(slot=1 + number % (slots - 1), jitter=number + 1)
            same = True
            for name, one in base.outputs.items():
                if name in self._case["outputs"] and not edits.same(one, answer.outputs[name]):
                    same = False
                    far = self._apart(name, one, answer.outputs[name], truth)
                    apart[name] = max(apart[name], far)
                    mask = edits.differing(one, answer.outputs[name])
                    self._places.setdefault("repeats", self._where(name, mask))
            equal += same
        if "rows" in self._abilities and self._case["input_rows"]:
            self._rounds(inputs)
        if not self._free:
            return {"repeats": self._repeats, "repeats_equal": equal}
        self._part = "stock"
        stock = dict.fromkeys(self._case["outputs"], 0.0)
        others = [self._maker.run("stock") for _ in range(STOCK_REPEATS)]
        for other in (*others, truth.variant):
            for name in set(stock) - {UNTOUCHED}:
                far = self._apart(name, truth.stock[name], other[name], truth)
                stock[name] = max(stock[name], far)
        self._part = "candidate"
        return {"repeats": self._repeats, "repeats_equal": equal, "spread": apart,
                "stock_spread": stock}  # fmt: skip

    def _apart(self, name: str, one: edits.Packed, other: edits.Packed, truth: Truth) -> float:
        if name == UNTOUCHED:
            return 0.0
        return distance(one.value(), other.value(), truth.reference[name].value())

    def _rounds(self, inputs: Arrays) -> None:
        """New content and then the same again, in the same buffers: how much slower is new?"""
        for number in range(ROUNDS):
            change = edits.one_element(inputs, self._case["input_rows"], 101 + number)
            if not change:
                self._not_offered.add("pace")
                return
            fresh = self._caller.call(edits=change)
            again = [self._caller.call(edits=change) for _ in range(AGAIN)]
            self._times["fresh"].append(fresh.seconds)
            self._times["again"] += [one.seconds for one in again]
            self._ratios.append(fresh.seconds / float(np.median([one.seconds for one in again])))

    # Probes

    def _probes(
        self, seed: int, index: int, inputs: Arrays, base: Answer, truth: Truth
    ) -> Iterator[Record]:
        told = self._maker.ask(self._regime)
        if index == 0:
            self._work = told["work"]
        if "rows" in self._abilities:
            yield from self._row_probes(seed, inputs, base, truth)
        if "padding" in self._abilities:
            yield from self._padding(seed, inputs, base, truth)
        if "scalars" in self._abilities:
            self._part = "other_scalars"
            self._maker.hold(inputs)
            other = self._maker.vary("other_scalars", seed)
            yield from self._probe(seed, "scalars", other, self._truth())
        if not told["neighbours"]:
            self._not_offered.add("neighbours")
        for neighbour in told["neighbours"][:MOST_NEIGHBOURS] if index == 0 else ():
            self._part = f"neighbour {neighbour}"
            other = self._maker.inputs(neighbour, seed)
            name = "/".join(f"{key}={value}" for key, value in neighbour.items())
            yield from self._probe(seed, f"neighbours:{name}", other, self._truth())

    def _row_probes(
        self, seed: int, inputs: Arrays, base: Answer, truth: Truth
    ) -> Iterator[Record]:
        rows, outputs = self._case["input_rows"], self._case["output_rows"]
        self._part = "input_rows"
        order = edits.order_of(inputs, rows, seed)
        mixed = edits.hostile(inputs, rows, seed)
        if order is None:
            self._not_offered.add("permuted")
        else:
            self._part = "candidate, rows permuted"
            self._caller.hold(edits.permuted(inputs, rows, order), self._wanted(truth.stock))
            answer = self._caller.call()
            back = edits.permuted(answer.outputs, outputs, np.argsort(order))
            yield from self._compare(seed, back, truth, probe="permuted", only=set(outputs))
        self._maker.hold(mixed)
        yield from self._probe(seed, "hostile", mixed, self._truth())
        for attempt in range(4):
            self._part = "input_rows"
            change = edits.one_element(inputs, rows, 17 * seed + attempt)
            changed = edits.edited(inputs, change)
            self._maker.hold(changed)
            moved = self._truth()
            if any(not edits.same(moved.stock[n], truth.stock[n]) for n in set(moved.stock)):
                self._part = "candidate, one element changed"
                self._caller.hold(inputs, self._wanted(moved.stock))
                answer = self._caller.call(edits=change)
                self._stale(answer, moved, base, truth)
                yield from self._compare(seed, answer.outputs, moved, probe="nonce")
                return
        self._not_offered.add("nonce")

    def _probe(self, seed: int, probe: str, inputs: Arrays, truth: Truth) -> Iterator[Record]:
        """The candidate on other inputs, against their own reference and yardstick."""
        self._part = f"candidate, {probe}"
        self._caller.hold(inputs, self._wanted(truth.stock))
        answer = self._caller.call(inspect=True)
        self._watch_buffers(answer, truth)
        yield from self._compare(seed, answer.outputs, truth, probe=probe)

    def _watch_buffers(self, answer: Answer, truth: Truth) -> None:
        """Guard bytes, and poison left in buffers that were to be written."""
        for name, count in answer.guards.items():
            check = "guards_of_outputs" if name.startswith("output ") else "guards_changed"
            self._find(check, count, f"around {name}: {count} bytes")
        for name in self._case["outputs"] if "into" in self._abilities else ():
            left = edits.poison(answer.outputs[name]) & ~edits.poison(truth.stock[name])
            if left.any():
                self._find("unwritten", int(left.sum()), self._where(name, left))

    def _padding(self, seed: int, inputs: Arrays, base: Answer, truth: Truth) -> Iterator[Record]:
        """Other content where nothing may be read: bits stay, or errors if bits are free."""
        self._part = "other_padding"
        self._maker.hold(inputs)
        other = self._maker.vary("other_padding", seed)
        own = self._maker.run("stock")
        self._part = "candidate, other padding"
        self._caller.hold(other, self._wanted(own))
        answer = self._caller.call()
        if self._free:
            self._not_offered.add("padding")
            yield from self._compare(seed, answer.outputs, truth, probe="padding")
            return
        for name in self._case["outputs"]:
            expected = own[name] if name == UNTOUCHED else base.outputs[name]
            mask = edits.differing(expected, answer.outputs[name])
            if not mask.any():
                self._find("padding", 0, "")
            elif name != UNTOUCHED and not edits.same(own[name], truth.stock[name]):
                raise Unjudged(f"other_padding changes stock's own {name}")
            else:
                self._find("padding", int(mask.sum()), self._where(name, mask))

    # Records

    def _controls(self, seed: int, truth: Truth) -> Iterator[Record]:
        """Planted faults: those of the referee on stock's outputs, and the case's own."""
        self._part = "planted"
        for output, axes in self._case["outputs"].items():
            if output == UNTOUCHED:
                continue
            base = truth.stock[output].value().astype(np.float64)
            for name, plant in CONTROLS.items():
                planted = plant(base, truth.stock[output].dtype)
                if planted is not None:
                    yield self._measured(seed, output, axes, planted, truth, control=name)
        faults = self._maker.ask(self._regime)["faults"] if "faults" in self._abilities else []
        if not faults:
            self._not_offered.add("faults")
        for fault in faults:
            self._part = f"planted {fault}"
            made = self._maker.run(f"planted:{fault}")
            for output, axes in self._case["outputs"].items():
                if output in made and output != UNTOUCHED:
                    value = made[output].value()
                    yield self._measured(seed, output, axes, value, truth, control=f"case:{fault}")

    def _compare(
        self, seed: int, outputs: Arrays, truth: Truth, *, probe: str | None = None,
        only: set[str] | None = None, **repeats: Any,
    ) -> Iterator[Record]:  # fmt: skip
        for output, axes in self._case["outputs"].items():
            if output == UNTOUCHED:
                equal = edits.same(outputs[output], truth.stock[output])
                yield self._record(seed, output, stock=NOTHING, candidate=NOTHING, probe=probe,
                                   untouched_equal=equal)  # fmt: skip
            elif only is None or output in only:
                own = {k: v[output] if isinstance(v, dict) else v for k, v in repeats.items()}
                value = outputs[output].value()
                yield self._measured(seed, output, axes, value, truth, probe=probe, **own)

    def _measured(
        self, seed: int, output: str, axes: Sequence[str], value: Array, truth: Truth, **more: Any
    ) -> KernelRecord:
        exact = truth.reference[output].value().astype(np.float64)
        dtype, names = truth.stock[output].dtype, tuple(axes)
        return self._record(
            seed,
            output,
            stock=larger(
                error_stats(truth.stock[output].value(), exact, names, dtype),
                error_stats(truth.variant[output].value(), exact, names, dtype),
            ),
            candidate=error_stats(value, exact, names, dtype),
            rounding_rms=rounding_rms(exact, dtype),
            **more,
        )

    def _record(
        self, seed: int, output: str, status: CaseStatus = "ok", **more: Any
    ) -> KernelRecord:
        return KernelRecord(
            op=self._op, cell=self._cell, regime=self._regime, seed=seed, output=output,
            status=status, **more,
        )  # fmt: skip

    def _conduct(self, seed: int) -> ConductRecord:
        checks = [
            Check(name=name, relation="equal", observed=count, bound=0)
            for name, count in self._found.items()
        ]
        times = {name: float(np.median(t)) for name, t in self._times.items() if t}
        fastest = min(t for own in self._times.values() for t in own)
        if self._ratios:
            # The smallest of several rounds: noise would have to hit the first call of each.
            checks.append(Check(name="pace", relation="at_most",
                                observed=round(min(self._ratios), 3), bound=3.0))  # fmt: skip
        if self._work:
            bytes_s, flops_s = self._peaks.peaks
            floor = max(self._work.get("bytes", 0.0) / bytes_s,
                        self._work.get("flops", 0.0) / flops_s)  # fmt: skip
            checks.append(Check(name="floor", relation="at_least", observed=fastest, bound=floor))
        elif "work" in self._abilities:
            self._not_offered.add("floor")
        return ConductRecord(
            op=self._op, cell=self._cell, regime=self._regime, seed=seed, checks=checks,
            places=self._places, not_offered=sorted(self._not_offered), calls=self._caller.calls,
            times_s=times | {"fastest": fastest}, device=self._device,
        )  # fmt: skip
