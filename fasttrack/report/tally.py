"""One pass over raw records that counts what a report shows, in memory that hardly grows.

Owns counting; no verdict is made here. Read by `build`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fasttrack.schema import (
    AgentRecord,
    Arm,
    ConductRecord,
    FailureRecord,
    FeatureRecord,
    ItemRecord,
    KernelRecord,
    MonitorRecord,
    PathRecord,
    Record,
    SampleRecord,
    SessionRecord,
    TimelineRecord,
)

MOST_KEPT = 200
"""Failures kept in full; the rest is counted."""


@dataclass
class PathCount:
    """Engine steps of one stage and arm, by what they were and what ran them."""

    specialised_decode: int = 0
    stock_decode: int = 0
    stock_prefill: int = 0
    specialised_prefill: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Reasons of stock decode steps."""


@dataclass
class OpCount:
    """Kernel records of one op."""

    cells: set[str] = field(default_factory=set)
    outputs: set[str] = field(default_factory=set)
    seeds: set[int] = field(default_factory=set)
    controls: set[str] = field(default_factory=set)
    repeats: int = 0
    repeats_equal: int = 0
    probes: set[str] = field(default_factory=set)
    not_offered: set[str] = field(default_factory=set)
    """Checks that some cell's case had no ability for."""
    calls: int = 0


@dataclass
class Energy:
    """Of one arm's perf sessions: joules, and tokens prefilled or handed out meanwhile."""

    joules: float = 0.0
    tokens: int = 0
    sources: set[str] = field(default_factory=set)


@dataclass
class Tally:
    """Everything counted."""

    records: int = 0
    paths: dict[tuple[str, str], PathCount] = field(default_factory=dict)
    ops: dict[str, OpCount] = field(default_factory=dict)
    op_of_cell: dict[str, str] = field(default_factory=dict)
    sessions: list[SessionRecord] = field(default_factory=list)
    items: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answers by (eval, arm or `control`)."""
    drifts: dict[str, dict[int, dict[str, tuple[float, int]]]] = field(default_factory=dict)
    """Of replayed answers by eval, context (rounded to half an octave) and arm: sum of the changes
    of the gap, nats, and number of positions."""
    features: dict[str, dict[str, str]] = field(default_factory=dict)
    """By feature and arm, what was seen: ``holds``, or why not."""
    feature_steps: Counter[str] = field(default_factory=Counter)
    """Specialised decode steps of the candidate, by feature."""
    failures: list[FailureRecord] = field(default_factory=list)
    failure_count: int = 0
    monitors: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Lowest and highest of each monitored value."""
    energy: dict[Arm, Energy] = field(default_factory=dict)
    """Of perf sessions, where the machine tells it."""
    timelines: dict[Arm, TimelineRecord] = field(default_factory=dict)
    replays: list[AgentRecord] = field(default_factory=list)
    """Replays of agent traffic that were made."""
    places: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Sessions by (node, machine), of a run on a cluster."""


def count(records: Iterable[Record]) -> Tally:
    """The tally of a run's records."""
    tally = Tally()
    samples: dict[str, tuple[Arm, int]] = {}
    watched: dict[str, MonitorRecord] = {}
    gaps: dict[tuple[str, str], Sequence[float | None]] = {}
    for record in records:
        tally.records += 1
        if isinstance(record, PathRecord):
            _path(tally, record)
        elif isinstance(record, KernelRecord):
            _kernel(tally, record)
        elif isinstance(record, ConductRecord):
            found = tally.ops.setdefault(record.op, OpCount())
            found.not_offered.update(record.not_offered)
            found.calls += record.calls
        elif isinstance(record, FeatureRecord):
            tally.features.setdefault(record.feature, {})[record.arm] = _seen(record)
        elif isinstance(record, SessionRecord):
            tally.sessions.append(record)
        elif isinstance(record, ItemRecord):
            arm = record.arm if record.repeat == "main" else f"{record.arm} ({record.repeat})"
            tally.items[(record.eval, arm)] += 1
            if (record.arm, record.repeat) == ("base", "main"):
                gaps[(record.eval, record.item)] = record.gaps
            elif record.repeat == "replay":
                _drift(tally, record, gaps.get((record.eval, record.item), ()))
        elif isinstance(record, FailureRecord):
            tally.failure_count += 1
            if len(tally.failures) < MOST_KEPT:
                tally.failures.append(record)
        elif isinstance(record, TimelineRecord):
            tally.timelines[record.arm] = record
        elif isinstance(record, AgentRecord):
            if record.turns and len(tally.replays) < MOST_KEPT:
                tally.replays.append(record)
        elif isinstance(record, SampleRecord):
            _, before = samples.get(record.session, (record.arm, 0))
            tokens = before + record.prompt_tokens + record.output_tokens
            samples[record.session] = record.arm, tokens
        elif isinstance(record, MonitorRecord):
            _monitor(tally, record)
            watched[record.session] = record
    _energy(tally, samples, watched)
    return tally


ENERGIES = {"gpu_joules": "GPUs", "cpu_joules": "CPU packages"}


def _energy(
    tally: Tally,
    samples: Mapping[str, tuple[Arm, int]],
    watched: Mapping[str, MonitorRecord],
) -> None:
    """Sessions of which both energy and tokens are known."""
    for session, (arm, tokens) in samples.items():
        values = watched[session].values if session in watched else {}
        told = {name: values.get(name) for name in ENERGIES}
        joules = {n: v for n, v in told.items() if isinstance(v, int | float) and v > 0}
        if joules and tokens:
            found = tally.energy.setdefault(arm, Energy())
            found.joules += sum(joules.values())
            found.tokens += tokens
            found.sources |= joules.keys()


def _drift(tally: Tally, record: ItemRecord, gaps: Sequence[float | None]) -> None:
    found = tally.drifts.setdefault(record.eval, {})
    for place, (here, there) in enumerate(zip(gaps, record.gaps, strict=False)):
        if here is not None and there is not None:
            context = max(1, record.prompt_tokens + place)
            arms = found.setdefault(round(2 ** (round(2 * math.log2(context)) / 2)), {})
            total, count = arms.get(record.arm, (0.0, 0))
            arms[record.arm] = total + abs(there - here), count + 1


def _seen(record: FeatureRecord) -> str:
    """What one arm showed of a feature."""
    if record.status != "observed":
        return "refused" if record.status == "refused" else "failed to run"
    broken = [check.name for check in record.checks if not check.holds]
    if not record.checks:
        return "nothing was checked"
    return f"broken: {', '.join(broken)}" if broken else f"{len(record.checks)} checks hold"


def _path(tally: Tally, record: PathRecord) -> None:
    stage, _, feature = record.cell.partition("/")
    if stage == "features" and record.arm == "candidate":
        tally.feature_steps[feature] += sum(step.path == "specialised" for step in record.steps)
    found = tally.paths.setdefault((record.stage, record.arm), PathCount())
    for step in record.steps:
        if step.path == "profile":
            continue
        if step.prefill_tokens:
            if step.path == "specialised":
                found.specialised_prefill += 1
            else:
                found.stock_prefill += 1
        elif step.path == "specialised":
            found.specialised_decode += 1
        else:
            found.stock_decode += 1
            found.fallbacks[step.reason] += 1


def _kernel(tally: Tally, record: KernelRecord) -> None:
    found = tally.ops.setdefault(record.op, OpCount())
    tally.op_of_cell[record.cell] = record.op
    found.cells.add(record.cell)
    if record.control is not None:
        found.controls.add(f"{record.cell} {record.control}")
        return
    if record.probe is not None:
        found.probes.add(f"{record.cell} {record.probe}")
        return
    found.outputs.add(record.output)
    found.seeds.add(record.seed)
    found.repeats += record.repeats
    found.repeats_equal += record.repeats_equal


def _monitor(tally: Tally, record: MonitorRecord) -> None:
    if "node" in record.values:
        tally.places[str(record.values["node"]), str(record.values.get("machine"))] += 1
    for name, value in record.values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            low, high = tally.monitors.get(name, (value, value))
            tally.monitors[name] = (min(low, value), max(high, value))
