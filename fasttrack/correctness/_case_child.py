"""Child of the kernel referee: runs an optimization's cases on demand.

The referee starts two of these. One makes inputs, reference and stock outputs; the other only ever
sees inputs and returns candidate outputs. Either holds the inputs of one cell; a call of the
candidate is three requests: `ready` (inputs into buffers), `go` (the call, clocked by the referee)
and `fetch` (what was copied when the call returned).

This process runs code under test, so nothing it says of itself is believed: inputs of a call are
named after the one before has returned, and all comparing and clocking is done by the referee.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import torch

from fasttrack.correctness import case as cases
from fasttrack.correctness.buffers import Buffer, Form, Slots, unfit
from fasttrack.correctness.case import KernelCase, Tensors
from fasttrack.correctness.device import Device, WithGraphs, device
from fasttrack.correctness.jitter import Jitter
from fasttrack.engine.code import mapped
from fasttrack.engine.serve import Coded, serve

Described = Sequence[Mapping[str, Any]]
PARTS = ("reference", "stock", "stock_variant")
EXHAUSTED = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


class State:
    """What this child keeps between requests."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.cases: dict[str, KernelCase] = {}
        self.slots = Slots(device)
        self.held: dict[str, tuple[Form, bytes]] = {}
        self.wanted: dict[str, Form] = {}
        self.buffers: dict[str, Buffer] = {}
        self.content: dict[str, tuple[Form, bytes]] = {}
        self.out: dict[str, Buffer] = {}
        self.outputs: Tensors = {}
        self.copies: tuple[list[dict[str, Any]], list[bytes]] = ([], [])
        self.jitter = Jitter()

        self.guarded = False
        self.recorded: Any = None

    def use(self, op: str) -> KernelCase:
        """The case of an op, on the device it lives on."""
        case = self.cases[op]
        kind = cases.device(case)
        if kind != self.device.kind:
            self.device = device(kind)
            self.slots = Slots(self.device)
            if self.guarded:
                self.device.limit_memory()
        return case


if torch.cuda.is_available():
    # What it holds of torch must be torch's own: cases are imported later.
    import_module("fasttrack.correctness.device_cuda")
_STATE = State(device("cpu"))


def load(distribution: str, fallback: str | None, folder: str, guarded: bool) -> dict[str, Any]:
    """Cases of one distribution: op, outputs, regimes, abilities and declared liberties.

    `fallback` (``module:function``) serves a distribution that is not installed, with `folder` on
    the path; `guarded` bounds this process's memory. ENG-002 when importing fails.
    """
    torch.set_num_threads(1)
    try:
        factories = [
            point.load()
            for point in entry_points(group="fasttrack.cases")
            if point.dist is not None and point.dist.name == distribution
        ]
        if not factories and fallback:
            sys.path.insert(0, folder)
            module, _, name = fallback.partition(":")
            factories = [getattr(import_module(module), name)]
        for factory in factories:
            _STATE.cases.update({case.op: case for case in factory()})
        told = [_told(case) for case in _STATE.cases.values()]
    except BaseException as error:
        raise Coded("ENG-002", f"{type(error).__name__}: {error}") from error
    _STATE.guarded = guarded
    if guarded:
        _STATE.device.limit_memory()
    return {"cases": told}


def _told(case: KernelCase) -> dict[str, Any]:
    return {
        "op": case.op,
        "outputs": {name: list(axes) for name, axes in case.outputs.items()},
        "regimes": [dict(regime) for regime in case.regimes()],
        "abilities": cases.offered(case),
        "in_place": cases.in_place(case),
        "nondeterministic": cases.nondeterministic(case),
        "eager_only": cases.eager_only(case),
        "device": cases.device(case),
        "ranks": int(getattr(case, "ranks", 1)),
        **{name: dict(getattr(case, name, {})) for name in ("input_rows", "output_rows")},
    }


def ask(op: str, regime: dict[str, int]) -> dict[str, Any]:
    """What a case's abilities say of one regime."""
    case = _STATE.cases[op]
    told: dict[str, Any] = {"neighbours": [], "faults": [], "work": {}}
    if isinstance(case, cases.WithNeighbours):
        told["neighbours"] = [dict(one) for one in case.neighbours(regime)]
    if isinstance(case, cases.WithFaults):
        told["faults"] = [str(fault) for fault in case.faults(regime)]
    if isinstance(case, cases.WithWork):
        told["work"] = {name: float(value) for name, value in case.work(regime).items()}
    return told


# Both: inputs


def inputs(op: str, regime: dict[str, int], seed: int) -> tuple[dict[str, Any], list[bytes]]:
    """Seeded inputs of one cell, held from now on."""
    return _hold(_pack(_STATE.use(op).inputs(regime, seed)))


def vary(op: str, how: str, seed: int) -> tuple[dict[str, Any], list[bytes]]:
    """The held inputs with other padding or other scalars; held from now on."""
    with torch.inference_mode():
        return _hold(_pack(getattr(_STATE.cases[op], how)(_filled(), seed)))


def hold(arrays: Described, blobs: Sequence[bytes] = ()) -> dict[str, Any]:
    """Inputs of the calls to come."""
    _STATE.held = _content(arrays, blobs)
    return {}


def code(package: str) -> dict[str, Any]:
    """Compiled code this process has mapped, that of an installed `package` included."""
    return {"files": mapped(package)}


def _hold(frame: tuple[list[dict[str, Any]], list[bytes]]) -> tuple[dict[str, Any], list[bytes]]:
    described, data = frame
    _STATE.held = _content(described, data)
    return {"arrays": described}, data


def _content(arrays: Described, blobs: Sequence[bytes]) -> dict[str, tuple[Form, bytes]]:
    return {
        entry["name"]: (Form(entry["dtype"], tuple(entry["shape"])), blob)
        for entry, blob in zip(arrays, blobs, strict=True)
    }


def _filled(slot: int = 0) -> Tensors:
    _STATE.buffers = _STATE.slots.fill(slot, _STATE.held)
    return {name: buffer.tensor for name, buffer in _STATE.buffers.items()}


# Referee: truth and yardstick


def run(op: str, what: str) -> tuple[dict[str, Any], list[bytes]]:
    """`reference`, `stock`, `stock_variant` or ``planted:FAULT`` on a copy of the held inputs."""
    case = _STATE.cases[op]
    part, _, fault = what.partition(":")
    with torch.inference_mode():
        if part == "planted" and isinstance(case, cases.WithFaults):
            made = case.planted(fault, _filled())
        elif what in PARTS:
            made = getattr(case, what)(_filled())
        else:
            raise Coded("ENG-006", f"unknown call {what!r}")
    described, data = _pack(made)
    return {"arrays": described}, data


# Candidate: a call


def forget(op: str) -> dict[str, Any]:
    """A new cell: give back its predecessors' buffers. Tells what device it is on."""
    _STATE.use(op)
    _STATE.slots.clear()
    _STATE.recorded = None
    graphs = isinstance(_STATE.device, WithGraphs)
    return {"kind": _STATE.device.kind, "graphs": graphs, "peaks": list(_STATE.device.peaks())}


def expect(arrays: Described) -> dict[str, Any]:
    """Dtypes and shapes of the outputs of the calls to come."""
    _STATE.wanted = {entry["name"]: Form(entry["dtype"], tuple(entry["shape"])) for entry in arrays}
    return {}


def ready(
    op: str, slot: int = 0, edits: Sequence[Mapping[str, Any]] = (), jitter: int = 0
) -> dict[str, Any]:
    """Fill the buffers of a slot with the held inputs, after these edits; drop earlier outputs.

    `jitter` n > 0 moves the allocator and changes how many threads load memory; 0 ends all that.
    """
    _STATE.outputs, _STATE.copies = {}, ([], [])
    content = dict(_STATE.held)
    for edit in edits:
        form, data = content[edit["name"]]
        new, at = bytes.fromhex(edit["data"]), edit["at"]
        content[edit["name"]] = (form, data[:at] + new + data[at + len(new) :])
    _STATE.content = content
    _STATE.buffers = _STATE.slots.fill(slot, content)
    _STATE.out = {}
    if _into(op):
        blank = {f"out {name}": (form, None) for name, form in _STATE.wanted.items()}
        filled = _STATE.slots.fill(slot, blank)
        _STATE.out = {name.removeprefix("out "): buffer for name, buffer in filled.items()}
    _STATE.jitter.set(jitter)
    _STATE.jitter.dirty([form.nbytes for form in _STATE.wanted.values()])
    _STATE.device.disturb(jitter)
    return {}


def go(op: str, traced: bool = False, delays_s: Sequence[float] = ()) -> dict[str, Any]:
    """Call the candidate and copy what it returned, at once.

    `traced` asks the device for all it can tell; `delays_s` makes ranks late.
    """
    return _watched(op, lambda case: _call(case, delays_s), traced)


def once(op: str) -> None:
    """Call `candidate` on the buffers made ready, even where the case could write into others:
    those need the shapes of stock's outputs, which nobody has asked for."""
    with torch.inference_mode():
        _STATE.cases[op].candidate({name: one.tensor for name, one in _STATE.buffers.items()})
    _STATE.device.synchronise()


def capture(op: str) -> dict[str, Any]:
    """Record a call on the buffers of the slot that was made ready last."""
    case, where = _STATE.cases[op], _STATE.device
    assert isinstance(where, WithGraphs)
    with torch.inference_mode():
        _STATE.recorded = where.capture(lambda: _call(case, ()))
    return {}


def replay(op: str) -> dict[str, Any]:
    """Run the recorded call on what its buffers hold now, and copy what it left, at once."""
    where, recorded = _STATE.device, _STATE.recorded
    assert isinstance(where, WithGraphs)

    def again(case: KernelCase) -> Any:
        where.replay()
        return recorded

    return _watched(op, again, False)


def _call(case: KernelCase, delays_s: Sequence[float]) -> Any:
    tensors = {name: buffer.tensor for name, buffer in _STATE.buffers.items()}
    if delays_s and isinstance(case, cases.WithRanks):
        return case.candidate_skewed(tensors, delays_s)
    if isinstance(case, cases.WithInto):
        outputs = {name: buffer.tensor for name, buffer in _STATE.out.items()}
        case.candidate_into(tensors, dict(outputs))
        return outputs
    return case.candidate(tensors)


def _watched(op: str, call: Callable[[KernelCase], Any], traced: bool) -> dict[str, Any]:
    case, where = _STATE.cases[op], _STATE.device
    try:
        with torch.inference_mode(), where.window(traced) as seen:
            outputs = call(case)
            where.synchronise()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or any(text in str(error) for text in EXHAUSTED):
            raise Coded("ENG-008", f"{type(error).__name__}: {error}") from error
        raise
    why = unfit(outputs, where, _STATE.buffers, cases.in_place(case))
    if not why:
        _STATE.outputs = outputs
        _STATE.copies = _copies(outputs)
    return {"unfit": why, "device": dict(seen)}


def fetch(inspect: bool = False) -> tuple[dict[str, Any], list[bytes]]:
    """The copies; with `inspect` also bytes that changed in each input and in the guards."""
    described, data = _STATE.copies
    changed: dict[str, int] = {}
    guards: dict[str, int] = {}
    if inspect:
        for name, buffer in _STATE.buffers.items():
            now, before = buffer.content(), _STATE.content[name][1]
            if now != before:
                changed[name] = sum(a != b for a, b in zip(now, before, strict=True))
        out = {f"output {name}": buffer for name, buffer in _STATE.out.items()}
        guards = {name: buffer.damage() for name, buffer in (_STATE.buffers | out).items()}
    damaged = {name: count for name, count in guards.items() if count}
    return {"arrays": described, "changed": changed, "guards": damaged}, data


def reread() -> tuple[dict[str, Any], list[bytes]]:
    """The outputs as they are now."""
    described, data = _copies(_STATE.outputs)
    return {"arrays": described}, data


def _into(op: str) -> bool:
    return isinstance(_STATE.cases[op], cases.WithInto)


def _copies(outputs: Tensors) -> tuple[list[dict[str, Any]], list[bytes]]:
    described = [_describe(name, tensor) for name, tensor in outputs.items()]
    return described, [_STATE.device.read(tensor) for tensor in outputs.values()]


def _describe(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"name": str(name), "dtype": dtype, "shape": list(tensor.shape)}


def _pack(tensors: Tensors) -> tuple[list[dict[str, Any]], list[bytes]]:
    described, data = [], []
    for name, tensor in sorted(tensors.items()):
        if not isinstance(tensor, torch.Tensor):
            raise Coded("ENG-006", f"{name} is a {type(tensor).__name__}, not a tensor")
        described.append(_describe(name, tensor))
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        data.append(flat.view(torch.uint8).numpy().tobytes())
    return described, data


CALLS = (
    load, ask, inputs, vary, hold, run, forget, expect, ready, go, capture, replay, fetch, reread,
    code,
)  # fmt: skip

if __name__ == "__main__":
    serve({call.__name__: call for call in CALLS}, default_code="ENG-006")
