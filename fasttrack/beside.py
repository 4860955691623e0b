"""Units side by side, each in a process of its own: for records that hold no speed.

Owns starting them, how many at once, and what each leaves: its records, or the coded error that
ended it. Owns no journal: the pipeline writes a unit as soon as it is done. Needs `fork`: what a
stage is given holds functions, which no other way of starting a process takes along.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from fasttrack.engine.setting import Setting
from fasttrack.errors import FasttrackError, RunError
from fasttrack.plan import Unit
from fasttrack.schema import Record

STAGES = frozenset({"kernels"})
"""Stages whose units may have neighbours: they compare results, and time nothing but floors."""


@dataclass(frozen=True)
class Ended:
    """One unit that is over."""

    unit: Unit
    records: list[Record]
    took_s: float
    error: FasttrackError | None = None


def run(
    setting: Setting,
    units: Sequence[Unit],
    runner: Callable[[Setting, Mapping[str, Any]], list[Record]],
    jobs: int,
) -> Iterator[Ended]:
    """Each unit as it ends; those still running are stopped when the caller stops asking."""
    context = multiprocessing.get_context("fork")
    waiting = list(units)
    running: dict[Connection, tuple[Any, Unit]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                unit = waiting.pop(0)
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(theirs, setting, unit, runner))
                process.start()
                theirs.close()
                running[ours] = process, unit
            for end in wait(list(running)):
                assert isinstance(end, Connection)
                process, unit = running.pop(end)
                yield _ended(end, unit)
                process.join()
    finally:
        for process, _ in running.values():
            process.terminate()
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


def _work(
    end: Connection,
    setting: Setting,
    unit: Unit,
    runner: Callable[[Setting, Mapping[str, Any]], list[Record]],
) -> None:
    """In the child: one unit, quietly, with logs of its own."""
    own = replace(setting, say=lambda text: None, logs=setting.logs / unit.stem)
    start = time.monotonic()
    problem = None
    records: list[Record] = []
    try:
        records = runner(own, unit.spec)
    except FasttrackError as error:
        more = {"next_step": error.next_step, "cell": error.cell, "detail": error.detail}
        problem = type(error), error.code, error.cause, more
    end.send((records, time.monotonic() - start, problem))
    end.close()
