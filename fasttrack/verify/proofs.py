"""Step 11, the path stage: what was seen of a call agrees with the schedule of that very call.

Each check is a small generator over `Facts` that yields a contradiction. Read by `consistency`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from fasttrack.rules.proof import kinds_of
from fasttrack.schema import (
    PathRecord,
    StateRecord,
    TimelineRecord,
    TraceRecord,
    TwinAnswer,
    TwinRecord,
)
from fasttrack.verify.facts import Contradiction, Facts

Proof = TraceRecord | TwinRecord | StateRecord | TimelineRecord


def _proofs(facts: Facts) -> list[Proof]:
    return [
        *facts.of(TraceRecord),
        *facts.of(TwinRecord),
        *facts.of(StateRecord),
        *facts.of(TimelineRecord),
    ]


def _planned(facts: Facts) -> Iterator[Contradiction]:
    """Each arm made every planned proof once, and no other."""
    cells = {"path/state": "state", "path/alternation": "twin", "path/timeline": "timeline"}
    for kind in kinds_of(facts.claim.targets[facts.run.target]):
        cells |= {f"path/{kind}/trace": "trace", f"path/{kind}/watermark": "twin"}
    counted: Counter[tuple[str, str]] = Counter()
    for record in _proofs(facts):
        counted[(record.arm, record.cell)] += 1
        if cells.get(record.cell) != record.kind or counted[(record.arm, record.cell)] > 1:
            yield Contradiction("VER-098", f"{record.cell} is not one planned proof", record)
    for session in facts.sessions.values():
        missing = sorted(cell for cell in cells if not counted[(session.arm, cell)])
        if session.stage == "path" and missing:
            yield Contradiction("VER-098", f"{session.session} lacks {missing[0]}", session)


def _schedules(facts: Facts) -> Iterator[Contradiction]:
    """Numbers of steps and tokens are those that the scheduler gave out."""
    logs = {(r.session, r.cell): r for r in facts.of(PathRecord) if r.stage == "path"}
    for record in _proofs(facts):
        log = logs.get((record.session, record.cell))
        if log is None:
            yield Contradiction("VER-098", f"{record.cell} has no step log", record)
            continue
        told = _against(record, log)
        if told:
            yield Contradiction("VER-098", f"{record.cell}: {told}", record)


def _against(record: Proof, log: PathRecord) -> str:
    pure = sum(decode > 0 and prefill == 0 for decode, prefill in log.scheduled)
    if isinstance(record, StateRecord):
        steps = 0 if record.problem else len(log.scheduled)
        if len(record.steps) != steps or record.watched_blocks > record.blocks:
            return f"{len(record.steps)} steps were watched of {steps}"
        return ""
    if isinstance(record, TimelineRecord):
        return _timeline(record, pure)
    if isinstance(record, TraceRecord):
        if record.decode_steps != pure:
            return f"{record.decode_steps} decode steps were traced of {pure}"
        if any(not 0 < n <= record.most.get(name, 0) for name, n in record.least.items()):
            return "a name was seen less often at most than at least"
        return ""
    made = sum(len(answer.token_ids) for answer in record.changed)
    decoded = sum(decode for decode, _ in log.scheduled)
    if made > decoded + len(record.changed):
        return f"{made} tokens came out of steps that decoded {decoded}"
    answers: list[TwinAnswer] = [*record.plain, *record.changed]
    if any(len(a.logprobs) > len(a.token_ids) for a in answers):
        return "there are more log-probabilities than tokens"
    return ""


def _timeline(record: TimelineRecord, pure: int) -> str:
    seen = record.seen
    if seen is None:
        return ""
    if len(seen.steps) + len(seen.plain_us) > pure:
        return f"{len(seen.steps) + len(seen.plain_us)} steps were timed of {pure}"
    if len(seen.spans) not in {count for count, _ in seen.steps}:
        return f"{len(seen.spans)} spans are of none of its steps"
    for name, start, took, _, layer in seen.spans:
        known = 0 <= name < len(seen.names) and (layer is None or 0 <= layer < len(seen.kinds))
        if not known or start < 0 or took < 0:
            return "a span has no name, layer or time"
    return ""


def _same_steps(facts: Facts) -> Iterator[Contradiction]:
    """A sample and the step log beside it tell of the same steps."""
    logs = {(r.session, r.cell): r for r in facts.of(PathRecord) if r.stage == "perf"}
    for sample in facts.samples:
        log = logs.get((sample.session, sample.cell))
        steps = [(step.decode_tokens, step.prefill_tokens) for step in sample.steps]
        if log is not None and steps != [tuple(pair) for pair in log.scheduled]:
            yield Contradiction(
                "VER-098",
                f"{sample.session} {sample.cell}: sample and step log differ in their steps",
                sample,
            )


CHECKS: tuple[Callable[[Facts], Iterator[Contradiction]], ...] = (
    _planned,
    _schedules,
    _same_steps,
)
