"""The claimed path ran, and only where claimed: per stage, from step logs and the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fasttrack.rules.base import Case, Rule
from fasttrack.schema import PathRecord, State, Verdict


def _judge(case: Case, stage: str) -> Iterator[Verdict]:
    records = [record for record in case.records(PathRecord) if record.stage == stage]
    for arm in ("base", "candidate"):
        chosen = [record for record in records if record.arm == arm]
        state, reason, detail = _arm(case, arm, chosen)
        yield Verdict(
            rule="path",
            cell=f"{stage}/{arm}",
            state=state,
            reason=reason,
            detail=detail,
            n=sum(len(record.steps) for record in chosen),
            next="" if state is State.PASS else case.reproduce(stage),
        )


def _arm(case: Case, arm: str, records: Sequence[PathRecord]) -> tuple[State, str, str]:
    steps = [step for record in records for step in record.steps]
    if not steps:
        return State.MISSING, "NO-RECORDS", f"no step of the {arm} arm left path evidence"
    for record in records:
        told = _mismatch(record)
        if told:
            return State.FAIL, "PATH-MISMATCH", f"{record.cell}: {told}"
    specialised = [step for step in steps if step.path == "specialised"]
    confirmed = sum(
        step.path == "specialised"
        for record in records
        for step in record.steps[: len(record.scheduled)]
    )
    if arm == "base":
        if specialised:
            return State.FAIL, "PATH-BASE", f"{len(specialised)} specialised steps in base"
        return State.PASS, "OK", f"{len(steps)} stock steps"
    prefilled = [step for step in specialised if step.prefill_tokens]
    if prefilled:
        return (
            State.FAIL,
            "PATH-PREFILL",
            f"{len(prefilled)} specialised steps with prefill tokens, first at step "
            f"{prefilled[0].step}",
        )
    if not confirmed:
        reasons = Counter(step.reason for step in steps).most_common(3)
        return State.NOT_EXERCISED, "PATH-NONE", f"no specialised step; reasons {dict(reasons)}"
    largest = max(case.target.grid.batch)
    fallen = [
        step
        for step in steps
        if step.path == "stock" and not step.prefill_tokens and step.requests <= largest
    ]
    if fallen:
        return (
            State.FAIL,
            "PATH-FALLBACK",
            f"{len(fallen)} pure decode steps ran stock, first: {fallen[0].reason}",
        )
    prefill = sum(step.prefill_tokens > 0 for step in steps)
    return (
        State.PASS,
        "OK",
        f"{confirmed} specialised decode steps; {prefill} steps with prefill, all stock",
    )


def _mismatch(record: PathRecord) -> str:
    """Where the step log contradicts the scheduler; empty if nowhere.

    The engine may run a last step that the harness did not wait for; what the log says of it counts
    for nothing good. A draft row decodes for the scheduler and prefills for the log, never the
    other way round.
    """
    scheduled = [decode + prefill for decode, prefill in record.scheduled]
    logged = [step.tokens for step in record.steps[: len(scheduled)]]
    if scheduled != logged:
        return (
            f"scheduler ran {len(scheduled)} steps of {sum(scheduled)} tokens, the log has "
            f"{len(logged)} of {sum(logged)}"
        )
    for step, (_, prefill) in zip(record.steps, record.scheduled, strict=False):
        if step.prefill_tokens < prefill:
            return (
                f"step {step.step} prefilled {prefill} tokens, the log says {step.prefill_tokens}"
            )
    return ""


def _rule(stage: str) -> Rule:
    return Rule("path", stage, lambda case: _judge(case, stage))


RULES = tuple(_rule(stage) for stage in ("features", "evals", "perf"))
