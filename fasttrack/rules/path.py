"""The claimed path ran, and only where claimed: per stage, from step logs and the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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


@dataclass
class _Seen:
    """Steps of one arm, counted in one pass: a long run has millions."""

    steps: int = 0
    specialised: int = 0
    confirmed: int = 0
    """Specialised steps that the scheduler knows of."""
    with_prefill: int = 0
    prefilled: list[int] = field(default_factory=list)
    """Specialised steps that prefilled."""
    fallen: Counter[str] = field(default_factory=Counter)
    """Reasons of pure decode steps inside the claimed batches that ran stock."""
    reasons: Counter[str] = field(default_factory=Counter)


def _count(records: Sequence[PathRecord], largest: int) -> _Seen:
    seen = _Seen()
    for record in records:
        scheduled = len(record.scheduled)
        for index, step in enumerate(record.steps):
            seen.steps += 1
            seen.reasons[step.reason] += 1
            prefill = step.prefill_tokens != 0
            seen.with_prefill += step.prefill_tokens > 0
            if step.path == "specialised":
                seen.specialised += 1
                seen.confirmed += index < scheduled
                if prefill:
                    seen.prefilled.append(step.step)
            elif step.path == "stock" and not prefill and step.requests <= largest:
                seen.fallen[step.reason] += 1
    return seen


def _arm(case: Case, arm: str, records: Sequence[PathRecord]) -> tuple[State, str, str]:
    seen = _count(records, max(case.target.grid.batch))
    if not seen.steps:
        return State.MISSING, "NO-RECORDS", f"no step of the {arm} arm left path evidence"
    for record in records:
        told = _mismatch(record)
        if told:
            return State.FAIL, "PATH-MISMATCH", f"{record.cell}: {told}"
    if arm == "base":
        if seen.specialised:
            return State.FAIL, "PATH-BASE", f"{seen.specialised} specialised steps in base"
        return State.PASS, "OK", f"{seen.steps} stock steps"
    if seen.prefilled:
        return (
            State.FAIL,
            "PATH-PREFILL",
            f"{len(seen.prefilled)} specialised steps with prefill tokens, first at step "
            f"{seen.prefilled[0]}",
        )
    if not seen.confirmed:
        reasons = dict(seen.reasons.most_common(3))
        return State.NOT_EXERCISED, "PATH-NONE", f"no specialised step; reasons {reasons}"
    if seen.fallen:
        return (
            State.FAIL,
            "PATH-FALLBACK",
            f"{seen.fallen.total()} pure decode steps ran stock, first: {next(iter(seen.fallen))}",
        )
    return (
        State.PASS,
        "OK",
        f"{seen.confirmed} specialised decode steps; {seen.with_prefill} steps with prefill, all "
        "stock",
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
