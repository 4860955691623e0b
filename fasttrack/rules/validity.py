"""Which samples and pairs count, decided before looking at speed."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.perf.window import decode_window
from fasttrack.rules.base import Case
from fasttrack.schema import Cell, PathRecord, SampleRecord, SessionRecord

MIN_WINDOW_STEPS = 8


def engine_problem(case: Case) -> str:
    """Why the run's sessions are not one engine with one switch; empty if they are.

    Sessions of all stages are compared: evals and perf of different builds prove nothing. Those of
    a variant, booted otherwise on purpose, are compared among themselves.
    """
    first: dict[str, SessionRecord] = {}
    for session in case.records(SessionRecord):
        other = first.setdefault(session.variant, session).fingerprint
        if session.fingerprint != other:
            keys = [
                key
                for key in {*session.fingerprint, *other}
                if session.fingerprint.get(key) != other.get(key)
            ]
            return f"session {session.session} differs in {', '.join(sorted(keys))}"
        expected = getattr(case.claim.switch, session.arm)
        if session.switch != expected:
            return f"session {session.session} reports the switch {session.switch!r}"
    return ""


def sample_problem(sample: SampleRecord, cell: Cell) -> str:
    """Why a sample is not a measurement of its cell; empty if it is. Reads no duration."""
    if sample.completed_requests != sample.planned_requests:
        return f"{sample.completed_requests} of {sample.planned_requests} requests ran"
    if sample.planned_requests != cell.batch:
        return f"{sample.planned_requests} requests for batch {cell.batch}"
    if sample.prompt_tokens != cell.batch * cell.context_tokens:
        return f"{sample.prompt_tokens} prompt tokens instead of the cell's"
    if sample.cached_tokens:
        return f"{sample.cached_tokens} prompt tokens came from the prefix cache"
    window = decode_window(sample.steps, cell.batch)
    if len(window) < MIN_WINDOW_STEPS:
        return f"only {len(window)} steady decode steps"
    return ""


def exercised(sample: SampleRecord, cell: Cell, paths: Sequence[PathRecord]) -> bool:
    """Whether every steady step of a candidate sample ran the specialised path."""
    window = decode_window(sample.steps, cell.batch)
    for record in paths:
        if record.session == sample.session and record.cell == sample.cell:
            steps = list(record.steps)
            return len(steps) >= window.stop and all(
                steps[index].path == "specialised" for index in window
            )
    return False
