"""Units side by side, each in a process of its own: for records that hold no speed.

Owns starting them and what each leaves: its records, or the coded error that ended it. How many at
once, in which order and with what, a `Room` tells. Owns no journal: the pipeline writes a unit as
soon as it is done. Needs `fork`: what a stage is given holds functions, which no other way of
starting a process takes along.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from fasttrack.engine.setting import Setting
from fasttrack.errors import FasttrackError, RunError
from fasttrack.plan import Unit
from fasttrack.schema import Record
from fasttrack.schema.record import Stage

GRACE_S = 10.0
"""How long a unit that is stopped may take to stop its engine."""
Runner = Callable[[Setting, Mapping[str, Any]], list[Record]]


class Room(Protocol):
    """Where units have their place. An empty room lets some unit begin, whatever is waiting."""

    def begin(self, setting: Setting, unit: Unit) -> Setting | None:
        """What the unit begins with; None: not now."""

    def end(self, unit: Unit) -> None:
        """The unit is over."""


class AtOnce:
    """Room for so many, in order, each with logs of its own."""

    def __init__(self, jobs: int) -> None:
        self._free = jobs

    def begin(self, setting: Setting, unit: Unit) -> Setting | None:
        """See `Room`."""
        if not self._free:
            return None
        self._free -= 1
        return replace(setting, logs=setting.logs / unit.stem)

    def end(self, unit: Unit) -> None:
        """See `Room`."""
        self._free += 1


@dataclass(frozen=True)
class Ended:
    """One unit that is over."""

    unit: Unit
    records: list[Record]
    took_s: float
    error: FasttrackError | None = None


def run(
    setting: Setting, units: Sequence[Unit], runners: Mapping[Stage, Runner], room: Room
) -> Iterator[Ended]:
    """Each unit as it ends; those still running are stopped when the caller stops asking.

    The next ones begin when the caller asks again: they may read what it kept of the last.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(units)
    running: dict[Connection, tuple[Any, Unit]] = {}
    try:
        while waiting or running:
            for unit in list(waiting):
                own = room.begin(setting, unit)
                if own is None:
                    continue
                waiting.remove(unit)
                ours, theirs = context.Pipe(duplex=False)
                work = theirs, own, unit, runners[unit.stage]
                process = context.Process(target=_work, args=work)
                with _uninterrupted():
                    process.start()
                    running[ours] = process, unit
                theirs.close()
            if not running:
                names = ", ".join(unit.name for unit in waiting)
                raise RuntimeError(f"an empty room has no place for {names}")
            for end in wait(list(running)):
                assert isinstance(end, Connection)
                process, unit = running[end]
                ended = _ended(end, unit)
                process.join()
                del running[end]
                room.end(unit)
                yield ended
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join(GRACE_S)
            process.kill()
            process.join()


def _ended(end: Connection, unit: Unit) -> Ended:
    with end:
        try:
            records, took_s, problem = end.recv()
        except EOFError:
            cause = f"the process of unit {unit.name} ended without a word"
            return Ended(unit, [], 0.0, RunError("ENG-003", cause, next_step="repeat the command"))
    if problem is None:
        return Ended(unit, records, took_s)
    kind, code, cause, more = problem
    return Ended(unit, [], took_s, kind(code, cause, **more))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until a child is there, as what is raised inside a fork is lost.

    The child stays as it is born: Ctrl-C is for its parent, who stops it.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # nobody listens, and what a child starts must not either
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        before(signal.SIGINT, None)


def _work(end: Connection, setting: Setting, unit: Unit, runner: Runner) -> None:
    """In the child: one unit, quietly."""
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    start = time.monotonic()
    problem = None
    records: list[Record] = []
    try:
        records = runner(replace(setting, say=lambda text: None), unit.spec)
    except FasttrackError as error:
        more = {"next_step": error.next_step, "cell": error.cell, "detail": error.detail}
        problem = type(error), error.code, error.cause, more
    end.send((records, time.monotonic() - start, problem))
    end.close()


def _stop(*_: object) -> None:
    """Leave as if by an error: whoever holds an engine kills it on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    sys.exit(128 + signal.SIGTERM)


def _stop_with_parent() -> None:
    """A unit does not outlive its run, however that ends."""
    parent, main = multiprocessing.parent_process(), threading.main_thread().ident
    assert parent is not None and main is not None
    wait([parent.sentinel])
    signal.pthread_kill(main, signal.SIGTERM)
