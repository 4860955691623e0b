"""Whole runs, honest until told otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fasttrack.schema import (
    STAGES,
    AgentRecord,
    AgentTurn,
    ConductRecord,
    MonitorRecord,
    Record,
    SessionRecord,
)
from zoo_records._agent import agent, totals
from zoo_records._evals import evals
from zoo_records._features import features
from zoo_records._isolation import isolation
from zoo_records._kernels import conduct, kernels, not_compiled
from zoo_records._perf import perf, routing
from zoo_records._proofs import proofs


def honest_run(**parts: Sequence[Record]) -> list[Record]:
    """A run that passes every rule; a stage's records may be given instead, or `compiled`, the
    audit's part of the stage kernels."""
    stages: dict[str, Sequence[Record]] = {
        "isolation": isolation(),
        "kernels": kernels(),
        "path": proofs(),
        "features": features(),
        "evals": evals(),
        "perf": [*perf(), routing()],
    }
    audited = parts.pop("compiled", [not_compiled()])
    stages |= parts
    stages["kernels"] = [*stages["kernels"], *audited]
    return [record for stage in STAGES for record in stages[stage]]


def agent_run(**changes: Any) -> list[Record]:
    """The honest run with agent traffic; `changes` are of `agent`."""
    return [*honest_run(), *agent(**changes)]


def retold(
    where: Callable[[AgentRecord], bool], change: Callable[[AgentTurn], Any], **also: Any
) -> list[Record]:
    """The honest run with agent traffic, in which `change` gives fields of the turns of some
    replays; the server's counters go with the turns unless `also` replaces them."""
    made: list[Record] = []
    for record in agent_run():
        if isinstance(record, AgentRecord) and where(record):
            turns = [turn.model_copy(update=change(turn) or {}) for turn in record.turns]
            kept = {"turns": turns, "counters": totals(turns)} | also
            record = record.model_copy(update=kept)
        made.append(record)
    return made


def watched(values: Mapping[str, Any], sessions: str = "") -> list[Any]:
    """An honest run in which the watch saw `values` in sessions whose names end in `sessions`."""
    return [
        record.model_copy(update={"values": values})
        if isinstance(record, MonitorRecord) and record.session.endswith(sessions)
        else record
        for record in honest_run()
    ]


def moved(there: tuple[str, ...]) -> list[Record]:
    """An honest run on machine aaaa, but for perf sessions whose names begin so: on bbbb."""
    return [
        record.model_copy(
            update={"machine": "bbbb" if record.session.startswith(there) else "aaaa"}
        )
        if isinstance(record, SessionRecord) and record.stage == "perf"
        else record
        for record in honest_run()
    ]


def too_fast(fastest_s: float, needed_s: float) -> list[Record]:
    """The honest run, but for a fastest kernel call beside the least time its work needs."""
    made: list[Record] = []
    for record in honest_run():
        if isinstance(record, ConductRecord):
            told = conduct(floor=fastest_s)
            checks = [
                check.model_copy(update={"bound": needed_s}) if check.name == "floor" else check
                for check in told.checks
            ]
            record = told.model_copy(update={"checks": tuple(checks)})
        made.append(record)
    return made
