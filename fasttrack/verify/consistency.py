"""Step 11: records of different kinds and stages must tell one story.

Rules judge what a run shows; these checks ask whether it can have happened at all. Each is a small
generator over `Facts` that yields a contradiction, and the first one found refuses the file. Times
are compared on the host's monotonic clock; a target on the fake engine has a simulated clock, so
nothing is concluded from its step times. Read by `steps`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from fasttrack.bundle.reader import Bundle
from fasttrack.errors import VerificationFailed
from fasttrack.schema import (
    Claim,
    FeatureRecord,
    ItemRecord,
    KernelRecord,
    MonitorRecord,
    PathRecord,
    Record,
    RunInfo,
    SampleRecord,
    SessionRecord,
)

SIMULATED_ENGINE = "fake"
TOLERANCE = timedelta(seconds=2)
"""Between two clocks, one of which tells whole seconds; far below a session's length."""
CLOCK_GRAIN_S = 1e-6
SHORTEST_VECTOR = 8
"""Step times that agree in fewer places may do so by chance on a coarse clock."""
ORDERS = (("base", "candidate", "candidate", "base"), ("candidate", "base", "base", "candidate"))

R = TypeVar("R")


@dataclass(frozen=True)
class Contradiction:
    """Why a run cannot have happened as recorded, and the record that shows it."""

    code: str
    cause: str
    at: Record


class Facts:
    """Everything the checks look at."""

    def __init__(self, claim: Claim, run: RunInfo, records: Sequence[Record]) -> None:
        self.claim = claim
        self.run = run
        self._records = records
        self.simulated = claim.targets[run.target].engine == SIMULATED_ENGINE

    def of(self, kind: type[R]) -> list[R]:
        """Records of one kind, in file order."""
        return [record for record in self._records if isinstance(record, kind)]

    @cached_property
    def sessions(self) -> dict[str, SessionRecord]:
        """Sessions by name; of two with one name, the first."""
        named: dict[str, SessionRecord] = {}
        for record in self.of(SessionRecord):
            named.setdefault(record.session, record)
        return named

    @cached_property
    def samples(self) -> list[SampleRecord]:
        """All perf samples."""
        return self.of(SampleRecord)


def check(bundle: Bundle, sourced: Sequence[tuple[str, Record]]) -> int:
    """Number of checks that found nothing.

    Raises `VerificationFailed` VER-080..092 naming the record's file.
    """
    facts = Facts(bundle.claim, bundle.run, [record for _, record in sourced])
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
    records = list(facts.sessions.values())
    for record in records[1:]:
        one, other = records[0].fingerprint, record.fingerprint
        if one != other:
            keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
            yield Contradiction(
                "VER-082",
                f"{record.session} differs from {records[0].session} in {', '.join(keys)}",
                record,
            )


def _session_times(facts: Facts) -> Iterator[Contradiction]:
    created = datetime.fromisoformat(facts.run.created_utc)
    for record in facts.sessions.values():
        started = _utc(record)
        if started is None or not 0 <= record.start_s <= record.ready_s <= record.end_s:
            yield Contradiction("VER-083", f"{record.session}: times out of order", record)
        elif started < created - TOLERANCE:
            yield Contradiction("VER-083", f"{record.session} is older than its run", record)


def _overlaps(facts: Facts) -> Iterator[Contradiction]:
    """Overlap on both clocks: a reboot restarts one, an adjustment may shift the other."""
    timed = [(start, r) for r in facts.sessions.values() if (start := _utc(r)) is not None]
    timed.sort(key=lambda pair: pair[0])
    latest: tuple[datetime, SessionRecord] | None = None
    for start, record in timed:
        end = start + timedelta(seconds=record.end_s - record.start_s)
        if latest is not None:
            before, other = latest
            both = record.start_s < other.end_s and other.start_s < record.end_s
            if both and start < before - TOLERANCE:
                yield Contradiction(
                    "VER-084", f"{record.session} ran while {other.session} did", record
                )
        if latest is None or end > latest[0]:
            latest = (end, record)


def _references(facts: Facts) -> Iterator[Contradiction]:
    named: list[tuple[SampleRecord | PathRecord | MonitorRecord, str, str | None]] = [
        *((r, "perf", r.arm) for r in facts.samples),
        *((r, r.stage, r.arm) for r in facts.of(PathRecord)),
        *((r, r.stage, None) for r in facts.of(MonitorRecord)),
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


def _blocks(facts: Facts) -> Iterator[Contradiction]:
    blocks: dict[int, dict[int, SampleRecord]] = defaultdict(dict)
    taken: set[tuple[int, int, str]] = set()
    for sample in facts.samples:
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
        early = first.start_s < session.ready_s - TOLERANCE.total_seconds()
        late = last.start_s + last.duration_s > session.end_s + TOLERANCE.total_seconds()
        if early or late:
            yield Contradiction("VER-088", f"{where}: steps lie outside the session", sample)


def _tokens(facts: Facts) -> Iterator[Contradiction]:
    for sample in facts.samples:
        where = f"{sample.session} {sample.cell}"
        decoded = sum(step.decode_tokens for step in sample.steps)
        prefilled = sum(step.prefill_tokens for step in sample.steps)
        if sample.completed_requests > sample.planned_requests:
            yield Contradiction("VER-089", f"{where}: more requests ended than began", sample)
        if sample.output_tokens > decoded + sample.planned_requests:
            # The first token of a request comes out of its last prefill step.
            yield Contradiction(
                "VER-089",
                f"{where}: {sample.output_tokens} tokens from steps that decoded {decoded}",
                sample,
            )
        whole = sample.completed_requests == sample.planned_requests
        if whole and prefilled < sample.prompt_tokens - sample.cached_tokens:
            yield Contradiction(
                "VER-089",
                f"{where}: {prefilled} of {sample.prompt_tokens} prompt tokens were prefilled",
                sample,
            )


def _copies(facts: Facts) -> Iterator[Contradiction]:
    seen: dict[bytes, SampleRecord] = {}
    for sample in () if facts.simulated else facts.samples:
        if len(sample.steps) < SHORTEST_VECTOR:
            continue
        times = array("d", [step.duration_s for step in sample.steps])
        vector = hashlib.sha256(times.tobytes()).digest()
        other = seen.setdefault(vector, sample)
        if other is not sample:
            yield Contradiction(
                "VER-090",
                f"{sample.session} {sample.cell} has the step times of {other.session} "
                f"{other.cell}",
                sample,
            )


def _repeats(facts: Facts) -> Iterator[Contradiction]:
    keyed: list[tuple[tuple[str, ...], Record]] = [
        *((("item", r.eval, r.item, r.arm, r.repeat), r) for r in facts.of(ItemRecord)),
        *(
            (("kernel", r.cell, str(r.seed), r.output, r.control or ""), r)
            for r in facts.of(KernelRecord)
        ),
        *((("feature", r.feature, r.arm), r) for r in facts.of(FeatureRecord)),
    ]
    seen: set[tuple[str, ...]] = set()
    for key, record in keyed:
        if key in seen:
            yield Contradiction("VER-091", f"recorded twice: {' '.join(key)}", record)
        seen.add(key)


def _own_counts(facts: Facts) -> Iterator[Contradiction]:
    for kernel in facts.of(KernelRecord):
        if not 0 <= kernel.repeats_equal <= kernel.repeats:
            yield Contradiction("VER-092", f"{kernel.cell}: more repeats agree than ran", kernel)
    for item in facts.of(ItemRecord):
        count = len(item.token_ids)
        if len(item.logprobs) > count or len(item.gaps) > count or not 0 <= item.score <= 1:
            yield Contradiction("VER-092", f"{item.item}: values beyond its tokens", item)


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
    _tokens,
    _copies,
    _repeats,
    _own_counts,
)


def _utc(record: SessionRecord) -> datetime | None:
    try:
        value = datetime.fromisoformat(record.started_utc)
    except ValueError:
        return None
    return value if value.tzinfo else None
