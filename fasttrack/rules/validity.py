"""Which samples and pairs count, decided before looking at speed."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.perf.window import decode_window
from fasttrack.rules.base import Case
from fasttrack.schema import Cell, PathRecord, SampleRecord, SessionRecord

MIN_WINDOW_STEPS = 8
LEAST_SHARE = 0.5
"""Of a call's time on the harness's clock that its engine steps must account for."""
SIMULATED_ENGINE = "fake"
"""Its clock is simulated: nothing follows from comparing it with ours."""


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
        if "timer" not in session.fingerprint:
            return f"session {session.session} does not say how it times its steps"
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


def clock_problem(sample: SampleRecord, case: Case) -> str:
    """Why the engine's step times cannot be believed; empty if they can.

    Steps are timed in the engine's process, where the optimization runs too. It could replace the
    clock, or return from a step before its work is done: then they do not add up to the time that
    passed on the harness's own clock.
    """
    if case.target.engine == SIMULATED_ENGINE:
        return ""
    if sample.call_s is None:
        return "the harness's own clock was not read"
    # An engine that schedules ahead tells two entries of one step with the same times.
    spans = {step.start_s: step.duration_s for step in sample.steps}
    total = sum(spans.values())
    if not LEAST_SHARE * sample.call_s <= total <= 1.01 * sample.call_s:
        return f"steps of {total:.3g} s in a call of {sample.call_s:.3g} s"
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
