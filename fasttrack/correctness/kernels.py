"""Stage 3: the kernel referee. Every op x regime x seed, candidate against reference and stock.

The candidate runs in its own child and gets nothing but inputs; reference and stock come from a
second child; clocks and comparison are here, so nothing the candidate replaces in its own process
(timers, random numbers, comparers, digests) reaches them. A case that raises, hangs, dies or is
absent becomes a record, and the stage goes on with a new child and with the other ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from typing import Any

from fasttrack.correctness import sanitizer
from fasttrack.correctness.cell import CellRun
from fasttrack.correctness.worker import Worker
from fasttrack.engine.setting import Setting
from fasttrack.errors import FasttrackError
from fasttrack.schema import Arm, CodeRecord, KernelRecord, Record

MAX_REGIMES = 256
ABSENT, REGIMES = "CAS-001", "CAS-002"
"""Codes of an op that cannot be measured; here they end the op, not the stage."""


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """All cells of one op; raises what starting a child raises, such as ENG-002."""
    referee, candidate = Worker(setting, "referee"), Worker(setting, "candidate")
    try:
        return measure(setting, spec, referee, candidate)
    finally:
        referee.close()
        candidate.close()


def measure(
    setting: Setting, spec: Mapping[str, Any], referee: Worker, candidate: Worker
) -> list[Record]:
    """All cells of one op, by children that the caller keeps. Raises as `run` does."""
    op = spec["op"]
    referee.ready()
    case = referee.cases.get(op)
    problem = _unusable(op, case, referee, setting.claim.plugin.distribution)
    if problem or case is None:
        return [
            KernelRecord(
                op=op, cell=op, regime={}, seed=setting.seed, output="*", status="absent",
                message=problem[:2000],
            )
        ]  # fmt: skip
    records: list[Record] = []
    regimes: list[dict[str, int]] = case["regimes"]
    turn = setting.seed % len(regimes)
    for index, regime in enumerate(regimes):
        name = cell_id(op, regime)
        if setting.cell and not fnmatch(name, setting.cell):
            continue
        setting.say(f"{name} ({index + 1}/{len(regimes)})")
        chosen = setting.cell is not None or index == turn
        repeats = spec["repeats"] if chosen else spec.get("few_repeats", spec["repeats"])
        cell = CellRun(referee, candidate, case, name, regime, repeats)
        records.extend(cell.run(range(setting.seed, setting.seed + spec["seeds"])))
        if cell.hung:
            # One hang decides the op; each further one would cost a whole time-out.
            return records
    if case["device"] == "cuda" and not setting.cell:
        records.extend(sanitizer.run(setting, op, regimes))
    return [*records, *_code(setting, op, {"base": referee, "candidate": candidate})]


def _code(setting: Setting, op: str, workers: Mapping[Arm, Worker]) -> Iterator[Record]:
    """Compiled code of both children, so that it can be compared with the engine's."""
    for arm, worker in workers.items():
        # A child that cannot be started again leaves no record, and its op is MISSING.
        with suppress(FasttrackError):
            answer, _ = worker.call("code", package=setting.claim.plugin.module)
            yield CodeRecord(stage="kernels", source=op, arm=arm, files=answer["files"])


def _unusable(op: str, case: Mapping[str, Any] | None, referee: Worker, distribution: str) -> str:
    """Why an op cannot be measured; none of its regimes may be left out in silence."""
    if case is None:
        return (
            f"{ABSENT}: {distribution} offers no kernel case for {op!r}; it has "
            f"{', '.join(referee.cases) or 'none'}"
        )
    regimes = case["regimes"]
    named = all(
        isinstance(regime, dict) and all(type(value) is int for value in regime.values())
        for regime in regimes
    )
    ids = {cell_id(op, regime) for regime in regimes} if named else set()
    if not named or len(ids) < len(regimes) or not 0 < len(regimes) <= MAX_REGIMES:
        return (
            f"{REGIMES}: the case of {op!r} has {len(regimes)} regimes, {len(ids)} of them usable "
            f"and distinct; 1 to {MAX_REGIMES} are run"
        )
    return ""


def cell_id(op: str, regime: Mapping[str, int]) -> str:
    """``kda/batch=3/context=128``."""
    return "/".join([op, *(f"{key}={value}" for key, value in regime.items())])
