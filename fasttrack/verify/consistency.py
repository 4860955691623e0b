"""Step 11: records of different kinds and stages must tell one story. Here: sessions and times.

Rules judge what a run shows; these checks ask whether it can have happened at all. Each is a small
generator over `Facts` that yields a contradiction, and the first one found refuses the file. Times
are compared on the host's monotonic clock; a target on the fake engine has a simulated clock, so
nothing is concluded from its step times. What is counted is in `counts`. Read by `steps`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from fasttrack.bundle.reader import Bundle
from fasttrack.errors import VerificationFailed
from fasttrack.schema import (
    AgentRecord,
    MonitorRecord,
    PathRecord,
    Record,
    RoutingRecord,
    SampleRecord,
    SessionRecord,
    StateRecord,
    TimelineRecord,
    TraceRecord,
    TwinRecord,
)
from fasttrack.verify import counts, proofs
from fasttrack.verify.facts import Contradiction, Facts

_Of = (
    SampleRecord
    | AgentRecord
    | PathRecord
    | MonitorRecord
    | RoutingRecord
    | TraceRecord
    | TwinRecord
    | StateRecord
    | TimelineRecord
)
"""Records that name their session."""
TOLERANCE = timedelta(seconds=2)
"""Between two clocks, one of which tells whole seconds; far below a session's length."""
CLOCK_GRAIN_S = 1e-6
ORDERS = (("base", "candidate", "candidate", "base"), ("candidate", "base", "base", "candidate"))


def check(bundle: Bundle, sourced: Sequence[tuple[str, Record]]) -> int:
    """Number of checks that found nothing.

    Raises `VerificationFailed` VER-080..092, VER-096 or VER-098 naming the record's file.
    """
    records = [record for _, record in sourced]
    facts = Facts(bundle.claim, bundle.run, bundle.plan["amounts"], records)
    for examine in CHECKS:
        for found in examine(facts):
            name = next(name for name, record in sourced if record is found.at)
            raise VerificationFailed(found.code, found.cause, cell=name)
    return len(CHECKS)


def _session_names(facts: Facts) -> Iterator[Contradiction]:
    for record in facts.of(SessionRecord):
        if facts.sessions[record.session] is not record:
            yield Contradiction("VER-080", f"{record.session} is the name of two", record)


def _switches(facts: Facts) -> Iterator[Contradiction]:
    for record in facts.sessions.values():
        expected = getattr(facts.claim.switch, record.arm)
        if record.switch != expected:
            yield Contradiction(
                "VER-081",
                f"{record.session}: the {record.arm} arm reports the switch {record.switch!r}, not "
                f"{expected!r}",
                record,
            )


def _fingerprints(facts: Facts) -> Iterator[Contradiction]:
    firsts: dict[str, SessionRecord] = {}
    for record in facts.sessions.values():
        first = firsts.setdefault(record.variant, record)
        one, other = first.fingerprint, record.fingerprint
        if one != other:
            keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
            yield Contradiction(
                "VER-082",
                f"{record.session} differs from {first.session} in {', '.join(keys)}",
                record,
            )


def _session_times(facts: Facts) -> Iterator[Contradiction]:
    created = datetime.fromisoformat(facts.run.created_utc)
    for record in facts.sessions.values():
        started = _utc(record)
        times = (0.0, record.start_s, record.ready_s, _turn_s(record), record.end_s)
        if started is None or any(one > other for one, other in pairwise(times)):
            yield Contradiction("VER-083", f"{record.session}: times out of order", record)
        elif started < created - TOLERANCE:
            yield Contradiction("VER-083", f"{record.session} is older than its run", record)


def _overlaps(facts: Facts) -> Iterator[Contradiction]:
    """Overlap on both clocks: a reboot restarts one, an adjustment may shift the other."""
    timed = [(start, r) for r in facts.sessions.values() if (start := _utc(r)) is not None]
    timed.sort(key=lambda pair: pair[0])
    running: list[tuple[datetime, SessionRecord]] = []
    for start, record in timed:
        running = [(end, other) for end, other in running if start < end - TOLERANCE]
        clash = next((other for _, other in running if _disturbed(record, other)), None)
        if clash is not None:
            yield Contradiction(
                "VER-084", f"{record.session} ran while {clash.session} did", record
            )
        running.append((start + timedelta(seconds=record.end_s - record.start_s), record))


def _disturbed(one: SessionRecord, other: SessionRecord) -> bool:
    """Whether two sessions overlap, one of which was timed, but for boots of those that booted
    together and idle waits. Engines of the other stages may run beside each other.

    Two machines have clocks of their own, and nothing that boots together is of two.
    """
    if "perf" not in (one.stage, other.stage):
        return False
    linked = one.session in other.beside and other.session in one.beside
    if one.machine != other.machine:
        return linked
    if not linked:
        return one.start_s < other.end_s and other.start_s < one.end_s
    return any(
        _turn_s(turn) < end and start < turn.end_s
        for turn, rest in ((one, other), (other, one))
        for start, end in ((rest.start_s, rest.ready_s), (_turn_s(rest), rest.end_s))
    )


def _turn_s(record: SessionRecord) -> float:
    """When a session began to be used."""
    return record.ready_s if record.turn_s is None else record.turn_s


def _references(facts: Facts) -> Iterator[Contradiction]:
    named: list[tuple[_Of, str, str | None]] = [
        *((r, "perf", r.arm) for r in facts.samples),
        *((r, "perf", r.arm) for r in facts.replays if r.turns),
        *((r, r.stage, r.arm) for r in facts.of(PathRecord)),
        *((r, r.stage, None) for r in facts.of(MonitorRecord)),
        *((r, "perf", "base") for r in facts.of(RoutingRecord)),
        *((r, "path", r.arm) for r in facts.of(TraceRecord)),
        *((r, "path", r.arm) for r in facts.of(TwinRecord)),
        *((r, "path", r.arm) for r in facts.of(StateRecord)),
        *((r, "path", r.arm) for r in facts.of(TimelineRecord)),
    ]
    for record, stage, arm in named:
        session = facts.sessions.get(record.session)
        if session is None or session.stage != stage or arm not in (None, session.arm):
            yield Contradiction(
                "VER-085", f"no session {record.session} of {stage}, arm {arm or 'any'}", record
            )


def _cells(facts: Facts) -> Iterator[Contradiction]:
    cells = {cell.id for cell in facts.claim.cells(facts.run.target)}
    for sample in facts.samples:
        if sample.cell not in cells:
            yield Contradiction("VER-086", f"{sample.cell} is not in the target's grid", sample)
    run = facts.run
    traffic = facts.claim.agent_traffic(run.target, run.tier, run.agent)
    planned = traffic.cells if traffic is not None else ()
    for replay in facts.replays:
        if replay.cell not in planned:
            yield Contradiction("VER-086", f"{replay.cell} was not planned", replay)


def _blocks(facts: Facts) -> Iterator[Contradiction]:
    blocks: dict[int, dict[int, SampleRecord | AgentRecord]] = defaultdict(dict)
    taken: set[tuple[int, int, str]] = set()
    measured: list[SampleRecord | AgentRecord] = [*facts.samples, *facts.replays]
    for sample in measured:
        place = (sample.block, sample.position, sample.cell)
        first = blocks[sample.block].setdefault(sample.position, sample)
        if place in taken or not 0 <= sample.position < 4 or first.session != sample.session:
            yield Contradiction(
                "VER-087", f"block {sample.block} position {sample.position} is taken", sample
            )
        taken.add(place)
    for block, members in blocks.items():
        if not any(all(order[at] == r.arm for at, r in members.items()) for order in ORDERS):
            arms = ", ".join(f"{at} {r.arm}" for at, r in sorted(members.items()))
            yield Contradiction(
                "VER-087", f"block {block} is neither ABBA nor BAAB: {arms}", members[min(members)]
            )


def _step_times(facts: Facts) -> Iterator[Contradiction]:
    for sample in facts.samples:
        where = f"{sample.session} {sample.cell}"
        if any(step.duration_s <= 0 for step in sample.steps):
            yield Contradiction("VER-088", f"{where}: a step took no time", sample)
        for one, other in pairwise(sample.steps):
            # An engine that schedules ahead tells two entries of one step with the same times.
            same = (one.start_s, one.duration_s) == (other.start_s, other.duration_s)
            if not same and other.start_s < one.start_s + one.duration_s - CLOCK_GRAIN_S:
                yield Contradiction("VER-088", f"{where}: steps overlap", sample)
        session = facts.sessions.get(sample.session)
        if facts.simulated or session is None or not sample.steps:
            continue
        first, last = sample.steps[0], sample.steps[-1]
        early = first.start_s < _turn_s(session) - TOLERANCE.total_seconds()
        late = last.start_s + last.duration_s > session.end_s + TOLERANCE.total_seconds()
        if early or late:
            yield Contradiction("VER-088", f"{where}: steps lie outside the session", sample)


CHECKS: tuple[Callable[[Facts], Iterator[Contradiction]], ...] = (
    _session_names,
    _switches,
    _fingerprints,
    _session_times,
    _overlaps,
    _references,
    _cells,
    _blocks,
    _step_times,
    *counts.CHECKS,
    *proofs.CHECKS,
)


def _utc(record: SessionRecord) -> datetime | None:
    try:
        value = datetime.fromisoformat(record.started_utc)
    except ValueError:
        return None
    return value if value.tzinfo else None
