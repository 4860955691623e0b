"""Parent side of the case child: a child that is started again after it died, and what is asked.

Owns: starting, loading, the requests by name, the referee's clock around a candidate's call. Judges
nothing. Read by the stage.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fasttrack.correctness.arrays import Arrays, Packed, unwire, wire
from fasttrack.engine.channel import Child
from fasttrack.engine.setting import Setting
from fasttrack.schema.record import CaseStatus

MODULE = "fasttrack.correctness._case_child"
STATUS: Mapping[str, CaseStatus] = {
    "ENG-003": "killed",
    "ENG-004": "hung",
    "ENG-005": "malformed",
    "ENG-006": "raised",
    "ENG-008": "memory",
}
"""Error code to status of a candidate's call."""


class CallFailed(Exception):
    """A candidate's call gave nothing to compare."""

    def __init__(self, status: CaseStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Worker:
    """A case child that is started again after it died."""

    def __init__(self, setting: Setting, role: str) -> None:
        self._setting = setting
        self._role = role
        self._child: Child | None = None
        self.cases: dict[str, dict[str, Any]] = {}

    @property
    def timeout_s(self) -> float:
        """How long a call may take."""
        return self._setting.timeout_s

    def ready(self) -> Child:
        """A living child that has loaded the cases; raises coded errors."""
        if self._child is None or not self._child.alive:
            log = self._setting.logs / f"kernels-{self._role}.log"
            self._child = Child(MODULE, log=log, env=self._setting.engine.env, cell=self._role)
            try:
                answer, _ = self._child.call(
                    "load",
                    self._setting.timeout_s,
                    distribution=self._setting.claim.plugin.distribution,
                    fallback=self._setting.claim.plugin.cases,
                    folder=str(self._setting.folder.resolve()),
                    guarded=self._role == "candidate",
                )
            except BaseException:
                # A child without cases must not be taken for one that is ready.
                self._child.kill()
                raise
            self.cases = {case["op"]: case for case in answer["cases"]}
        return self._child

    def call(self, call: str, **arguments: Any) -> tuple[dict[str, Any], list[bytes]]:
        """One call, in a living child; raises coded errors."""
        return self.ready().call(call, self._setting.timeout_s, **arguments)

    def close(self) -> None:
        """Stop the child."""
        if self._child is not None:
            self._child.close()


class Maker:
    """The referee's own child for one op: inputs, truth and yardstick."""

    def __init__(self, worker: Worker, op: str) -> None:
        self._worker, self._op = worker, op

    def inputs(self, regime: Mapping[str, int], seed: int) -> Arrays:
        """Seeded inputs; the child holds them."""
        return unwire_frame(self._worker.call("inputs", op=self._op, regime=regime, seed=seed))

    def vary(self, how: str, seed: int) -> Arrays:
        """The held inputs after `other_padding` or `other_scalars`; the child holds these now."""
        return unwire_frame(self._worker.call("vary", op=self._op, how=how, seed=seed))

    def hold(self, arrays: Arrays) -> None:
        """Make the child hold these."""
        described, blobs = wire(arrays)
        self._worker.call("hold", arrays=described, blobs=blobs)

    def run(self, what: str) -> dict[str, Packed]:
        """`reference`, `stock`, `stock_variant` or ``planted:FAULT`` on the held inputs."""
        return unwire_frame(self._worker.call("run", op=self._op, what=what))

    def ask(self, regime: Mapping[str, int]) -> dict[str, Any]:
        """What the case's abilities say of a regime."""
        return self._worker.call("ask", op=self._op, regime=regime)[0]


@dataclass(frozen=True)
class Answer:
    """What one call of the candidate gave, as copied when it returned."""

    outputs: Mapping[str, Packed]
    seconds: float
    """The referee's clock around the call."""
    changed: Mapping[str, int]
    """Bytes that changed, by input; empty unless inspected."""
    guards: Mapping[str, int]
    device: Mapping[str, Any]


class Caller:
    """The candidate's child for one op. Every call raises `CallFailed` when nothing can be
    compared, and coded errors when the child is at fault."""

    def __init__(self, worker: Worker, op: str) -> None:
        self._worker, self._op = worker, op
        self._forms: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.calls = 0
        self.peaks = (0.0, 0.0)
        """(bytes/s, flops/s) that no program on the child's device can exceed."""
        self.graphs = False
        """Whether the device can record calls."""

    def forget(self) -> None:
        """A new cell: its calls shall not find buffers of the one before."""
        told, _ = self._worker.call("forget", op=self._op)
        self.peaks = (float(told["peaks"][0]), float(told["peaks"][1]))
        self.graphs = bool(told["graphs"])

    def hold(self, arrays: Arrays, outputs: Arrays) -> None:
        """Inputs of the calls to come, and the outputs' dtypes and shapes."""
        described, _ = wire(outputs)
        self._forms = {name: (one.dtype, one.shape) for name, one in outputs.items()}
        self._worker.call("expect", arrays=described)
        described, blobs = wire(arrays)
        self._worker.call("hold", arrays=described, blobs=blobs)

    def call(
        self,
        slot: int = 0,
        edits: Sequence[Mapping[str, Any]] = (),
        jitter: int = 0,
        inspect: bool = False,
        delays_s: Sequence[float] = (),
    ) -> Answer:
        """One call on the buffers of a slot, its inputs named only now; traced if inspected."""
        self._worker.call("ready", op=self._op, slot=slot, edits=list(edits), jitter=jitter)
        return self._clocked("go", inspect, traced=inspect, delays_s=list(delays_s))

    def capture(self) -> None:
        """Record a call on the held inputs."""
        self._worker.call("ready", op=self._op)
        self._worker.call("capture", op=self._op)

    def replay(self) -> Answer:
        """The recorded call on the held inputs, at the addresses it was recorded with."""
        self._worker.call("ready", op=self._op)
        return self._clocked("replay", False)

    def _clocked(self, what: str, inspect: bool, **arguments: Any) -> Answer:
        child = self._worker.ready()
        start = time.perf_counter()
        told, _ = child.call(what, self._worker.timeout_s, op=self._op, **arguments)
        seconds = time.perf_counter() - start
        self.calls += 1
        if told["unfit"]:
            raise CallFailed("unfit", str(told["unfit"]))
        frame = self._worker.call("fetch", inspect=inspect)
        outputs = unwire_frame(frame)
        self._check(outputs)
        return Answer(outputs, seconds, frame[0]["changed"], frame[0]["guards"], told["device"])

    def reread(self) -> dict[str, Packed]:
        """The last call's outputs as they are now."""
        return unwire_frame(self._worker.call("reread"))

    def _check(self, outputs: Arrays) -> None:
        for name, (dtype, shape) in self._forms.items():
            if name not in outputs:
                raise CallFailed("malformed", f"output {name!r} is missing")
            one = outputs[name]
            if one.shape != shape:
                raise CallFailed("malformed", f"shape of {name} is {one.shape}, stock's {shape}")
            if one.dtype != dtype:
                raise CallFailed("malformed", f"dtype of {name} is {one.dtype}, stock's {dtype}")


def unwire_frame(frame: tuple[Mapping[str, Any], Sequence[bytes]]) -> dict[str, Packed]:
    """The arrays of an answer. Raises `KeyError`, `TypeError` or `ValueError` for a bad one."""
    answer, data = frame
    return unwire(answer["arrays"], data)
