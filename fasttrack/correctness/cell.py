"""One cell of the kernel referee: what is asked of the candidate there, in which order.

Every seed is compared with reference and stock. The first seeds also plant faults and send probes:
rows in another order, hostile rows, a single changed element, other padding, scalars and shapes.
The first one repeats its call under jitter and in rounds of new and old content. Read by `kernels`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fasttrack.correctness import arrays as edits
from fasttrack.correctness.arrays import Arrays
from fasttrack.correctness.case import UNTOUCHED
from fasttrack.correctness.recorder import Recorder, Truth
from fasttrack.correctness.watch import Watch
from fasttrack.correctness.worker import STATUS, Answer, Caller, CallFailed, Maker, Worker
from fasttrack.errors import FasttrackError
from fasttrack.schema import ConductRecord, Record
from fasttrack.schema.record import CaseStatus

PLANTED_SEEDS = 2
"""Seeds that plant faults."""
SEEDS_PER_PROBE = 5
"""One seed in so many sends probes, at least the first: what they look for is far off, so that the
hard cap finds it where a single seed has no interval."""
ROUNDS, MOST_ROUNDS, AGAIN = 3, 15, 2
"""Rounds of one call with new content and some with the same; more of them as long as the median
says that new content is slower, which a busy machine may say of a few."""
QUIET_S = 0.03
"""How long the referee waits before it reads outputs again."""
SLOTS, SLOT_BYTES = 8, 2**29
"""Sets of buffers at addresses of their own, and what they may take together."""
MOST_NEIGHBOURS = 2
STOCK_REPEATS = 8
LATE_S = 5e-3
"""How late a rank comes to an exchange: far longer than any launch or transfer."""
NONCES = 4
"""Elements tried until one moves stock's result."""


class Unjudged(Exception):
    """The case's own inputs, reference, stock or abilities failed."""


class CellRun:
    """One cell from its first call to its conduct record."""

    def __init__(
        self, referee: Worker, candidate: Worker, case: Mapping[str, Any], cell: str,
        regime: Mapping[str, int], repeats: int,
    ) -> None:  # fmt: skip
        self._case, self._regime, self._repeats = case, regime, repeats
        self._abilities: list[str] = case["abilities"]
        self._maker = Maker(referee, case["op"])
        self._caller = Caller(candidate, case["op"])
        self._recorder = Recorder(case["op"], cell, regime, case["outputs"])
        self._watch = Watch(case)
        self._told: dict[str, Any] = {}
        self._before: tuple[Answer, Truth] | None = None
        self._probed = 1
        self._part = "inputs"
        """Whose turn it is; a failure elsewhere than in the candidate is the case's own."""
        self.hung = False
        """Whether a call of this cell never came back."""

    def run(self, seeds: Sequence[int]) -> Iterator[Record]:
        """Records of every seed, and of the cell's conduct when nothing failed.

        A seed that gives nothing to compare is one record; a hang ends the cell.
        """
        failed = False
        self._probed = max(1, len(seeds) // SEEDS_PER_PROBE)
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
            failed, self._before = True, None
            yield self._recorder.record(seed, "*", status, message=message[:2000])
            if self.hung:
                return
        if not failed:
            yield self._conduct(seeds[0])

    def _seed(self, seed: int, index: int) -> Iterator[Record]:
        self._part = "inputs"
        inputs = self._maker.inputs(self._regime, seed)
        truth = self._truth()
        self._part = "candidate"
        if self._before is None:
            self._caller.forget()
        base = self._call(inputs, truth, inspect=True)
        if self._before is not None:
            self._watch.stale(base, truth, *self._before)
        self._before = base, truth
        repeats: dict[str, Any] = {}
        if index == 0:
            self._watch.times["first"].append(base.seconds)
            time.sleep(QUIET_S)
            self._watch.late(base, self._caller.reread())
            repeats = self._repeat(base, truth, inputs)
        yield from self._recorder.compared(seed, base.outputs, truth, **repeats)
        if index < PLANTED_SEEDS:
            yield from self._plants(seed, truth)
        if index < self._probed:
            yield from self._probes(seed, index, inputs, base, truth)
        if index == 0 and self._caller.graphs:
            yield from self._graph(seed, inputs, truth)

    def _call(self, inputs: Arrays, truth: Truth, **how: Any) -> Answer:
        """The candidate on these inputs, whose outputs must have the forms of stock's."""
        self._caller.hold(inputs, {name: truth.stock[name] for name in self._case["outputs"]})
        answer = self._caller.call(**how)
        self._watch.buffers(answer, truth)
        return answer

    def _truth(self) -> Truth:
        """Reference and yardstick for what the referee's child holds."""
        made: dict[str, Arrays] = {}
        for part in ("reference", "stock", "stock_variant"):
            self._part = part
            made[part] = self._maker.run(part)
        self._part = "stock"
        expected, stock = self._case["outputs"], made["stock"]
        if not set(expected) - {UNTOUCHED}:
            raise Unjudged("the case names no output to compare")
        for name in expected:
            if name not in stock:
                raise Unjudged(f"stock: output {name!r} is missing")
            if not stock[name].data:
                raise Unjudged(f"output {name!r} is empty")
            for part in ("reference", "stock_variant") if name != UNTOUCHED else ():
                if name not in made[part]:
                    raise Unjudged(f"{part}: output {name!r} is missing")
                shape, own = made[part][name].shape, stock[name].shape
                if shape != own:
                    raise Unjudged(f"{part}: shape of {name} is {shape}, stock's {own}")
        return Truth(made["reference"], stock, made["stock_variant"])

    # The same inputs again

    def _repeat(self, base: Answer, truth: Truth, inputs: Arrays) -> dict[str, Any]:
        """Repeats under jitter, at other addresses; then rounds of new and old content."""
        size = sum(len(one.data) for one in inputs.values())
        slots = max(2, min(SLOTS, SLOT_BYTES // max(1, size)))
        outputs: list[str] = list(self._case["outputs"])
        equal, apart = 0, dict.fromkeys(outputs, 0.0)
        for number in range(self._repeats):
            answer = self._caller.call(slot=1 + number % (slots - 1), jitter=number + 1)
            other = [n for n in outputs if not edits.same(base.outputs[n], answer.outputs[n])]
            equal += not other
            for name in other:
                far = truth.apart(name, base.outputs, answer.outputs)
                apart[name] = max(apart[name], far)
                mask = edits.differing(base.outputs[name], answer.outputs[name])
                self._watch.places.setdefault("repeats", self._watch.where(name, mask))
        told: dict[str, Any] = {"repeats": self._repeats, "repeats_equal": equal}
        if "rows" in self._abilities:
            self._rounds(inputs)
        if not self._case["nondeterministic"]:
            return told
        self._part = "stock"
        others = [self._maker.run("stock") for _ in range(STOCK_REPEATS)]
        compared = [name for name in outputs if name != UNTOUCHED]
        stock = {
            name: max(truth.apart(name, truth.stock, one) for one in (*others, truth.variant))
            for name in compared
        }
        self._part = "candidate"
        return told | {"spread": apart, "stock_spread": stock}

    def _rounds(self, inputs: Arrays) -> None:
        """New content and then the same again, in the same buffers: how much slower is new?

        Each call of a round follows another one at once, so that all find the same caches.
        """
        rows = self._case["input_rows"]
        changes = [edits.one_element(inputs, rows, 101 + n) for n in range(MOST_ROUNDS + 1)]
        if not all(changes):
            self._watch.not_offered.add("pace")
            return
        for number in range(MOST_ROUNDS):
            self._caller.call(edits=changes[number])
            fresh, *again = [self._caller.call(edits=changes[number + 1]) for _ in range(1 + AGAIN)]
            self._watch.pace(fresh, again)
            if number + 1 >= ROUNDS and self._watch.steady:
                return

    # Other inputs

    def _plants(self, seed: int, truth: Truth) -> Iterator[Record]:
        """Planted faults: the referee's own, and those only the case can make."""
        self._part = "planted"
        yield from self._recorder.controls(seed, truth)
        self._told = self._maker.ask(self._regime)
        for name in ("faults", "neighbours"):
            if not self._told[name]:
                self._watch.not_offered.add(name)
        for fault in self._told["faults"]:
            self._part = f"planted {fault}"
            yield from self._recorder.planted(
                seed, fault, self._maker.run(f"planted:{fault}"), truth
            )

    def _probes(
        self, seed: int, index: int, inputs: Arrays, base: Answer, truth: Truth
    ) -> Iterator[Record]:
        if "rows" in self._abilities:
            yield from self._rows(seed, inputs, base, truth)
        if "padding" in self._abilities:
            yield from self._padding(seed, inputs, base, truth)
        if "scalars" in self._abilities:
            self._part = "other_scalars"
            self._maker.hold(inputs)
            other = self._maker.vary("other_scalars", seed)
            if other == inputs:
                self._watch.not_offered.add("scalars")
            else:
                yield from self._probe(seed, "scalars", other)
        if "ranks" in self._abilities:
            for number, delays in enumerate(skews(self._case["ranks"], seed)):
                self._part = f"candidate, ranks late by {delays} s"
                answer = self._call(inputs, truth, delays_s=delays)
                yield from self._recorder.compared(
                    seed, answer.outputs, truth, probe=f"skew:{number}"
                )
        for neighbour in self._told["neighbours"][:MOST_NEIGHBOURS] if index == 0 else ():
            self._part = f"neighbour {neighbour}"
            name = "/".join(f"{key}={value}" for key, value in neighbour.items())
            yield from self._probe(seed, f"neighbours:{name}", self._maker.inputs(neighbour, seed))

    def _probe(self, seed: int, probe: str, inputs: Arrays) -> Iterator[Record]:
        """The candidate on other inputs, against their own reference and yardstick."""
        truth = self._truth()
        self._part = f"candidate, {probe}"
        answer = self._call(inputs, truth, inspect=True)
        yield from self._recorder.compared(seed, answer.outputs, truth, probe=probe)

    def _rows(self, seed: int, inputs: Arrays, base: Answer, truth: Truth) -> Iterator[Record]:
        """Rows in another order, hostile rows, one element changed."""
        rows, outputs = self._case["input_rows"], self._case["output_rows"]
        self._part = "input_rows"
        order = edits.order_of(inputs, rows, seed)
        mixed = edits.hostile(inputs, rows, seed)
        if order is None:
            self._watch.not_offered.add("permuted")
        else:
            self._part = "candidate, rows permuted"
            answer = self._call(edits.permuted(inputs, rows, order), truth)
            back = edits.permuted(answer.outputs, outputs, np.argsort(order))
            yield from self._recorder.compared(
                seed, back, truth, probe="permuted", only=set(outputs)
            )
        self._maker.hold(mixed)
        yield from self._probe(seed, "hostile", mixed)
        for attempt in range(NONCES):
            self._part = "input_rows"
            change = edits.one_element(inputs, rows, 17 * seed + attempt)
            self._maker.hold(edits.edited(inputs, change))
            moved = self._truth()
            if all(edits.same(one, truth.stock[name]) for name, one in moved.stock.items()):
                continue
            self._part = "candidate, one element changed"
            answer = self._call(inputs, moved, edits=change)
            self._watch.stale(answer, moved, base, truth)
            yield from self._recorder.compared(seed, answer.outputs, moved, probe="nonce")
            return
        self._watch.not_offered.add("nonce")

    def _padding(self, seed: int, inputs: Arrays, base: Answer, truth: Truth) -> Iterator[Record]:
        """Other content where nothing may be read: bits stay, or errors where bits are free."""
        self._part = "other_padding"
        self._maker.hold(inputs)
        other = self._maker.vary("other_padding", seed)
        if other == inputs:
            # A cell may have no padding at all; then there was nothing to find.
            self._watch.not_offered.add("padding")
            return
        own = self._maker.run("stock")
        for name, one in own.items():
            if name != UNTOUCHED and not edits.same(one, truth.stock[name]):
                raise Unjudged(f"other_padding changes stock's own {name}")
        self._part = "candidate, other padding"
        answer = self._call(other, Truth(truth.reference, own, truth.variant))
        if self._case["nondeterministic"]:
            self._watch.not_offered.add("padding")
            compared = {name: one for name, one in truth.reference.items() if name != UNTOUCHED}
            for name in compared:
                value = answer.outputs[name].value()
                yield self._recorder.measured(seed, name, value, truth, probe="padding")
            return
        for name in self._case["outputs"]:
            expected = own[name] if name == UNTOUCHED else base.outputs[name]
            mask = edits.differing(expected, answer.outputs[name])
            place = self._watch.where(name, mask) if mask.any() else ""
            self._watch.find("padding", int(mask.sum()), place)

    def _graph(self, seed: int, inputs: Arrays, truth: Truth) -> Iterator[Record]:
        """A call recorded once and run again: on its own inputs, on others at the same addresses,
        and on its own once more."""
        if self._case["eager_only"]:
            self._watch.not_offered.add("graph")
            return
        others: list[tuple[str, Arrays]] = []
        if "scalars" in self._abilities:
            self._part = "other_scalars"
            self._maker.hold(inputs)
            others.append(("scalars", self._maker.vary("other_scalars", seed)))
        if "rows" in self._abilities:
            self._part = "input_rows"
            change = edits.one_element(inputs, self._case["input_rows"], 31 * seed + 7)
            others.append(("content", edits.edited(inputs, change)))
        self._part = "candidate, graph capture"
        self._caller.hold(inputs, {name: truth.stock[name] for name in self._case["outputs"]})
        self._caller.capture()
        for name, content in [("own", inputs), *others, ("back", inputs)]:
            self._maker.hold(content)
            moved = truth if content is inputs else self._truth()
            self._part = f"candidate, graph replayed: {name}"
            self._caller.hold(content, {n: moved.stock[n] for n in self._case["outputs"]})
            answer = self._caller.replay()
            yield from self._recorder.compared(seed, answer.outputs, moved, probe=f"graph:{name}")

    def _conduct(self, seed: int) -> ConductRecord:
        work: Mapping[str, float] = self._told.get("work", {})
        floor = None
        if work:
            bytes_s, flops_s = self._caller.peaks
            floor = max(work.get("bytes", 0.0) / bytes_s, work.get("flops", 0.0) / flops_s)
        else:
            self._watch.not_offered.add("floor")
        times = {name: float(np.median(t)) for name, t in self._watch.times.items() if t}
        return ConductRecord(
            op=self._recorder.op, cell=self._recorder.cell, regime=self._regime, seed=seed,
            checks=self._watch.checks(floor), places=self._watch.places,
            not_offered=sorted(self._watch.not_offered), calls=self._caller.calls,
            times_s=times | {"fastest": self._watch.fastest_s}, device=self._watch.device,
        )  # fmt: skip


def skews(ranks: int, seed: int) -> list[list[float]]:
    """Delays of every rank, s: each rank alone late in turn, then all at random."""
    alone = [[LATE_S if rank == other else 0.0 for other in range(ranks)] for rank in range(ranks)]
    drawn = np.random.default_rng(seed).uniform(0, LATE_S, ranks)
    return [*alone, [round(float(delay), 6) for delay in drawn]]
