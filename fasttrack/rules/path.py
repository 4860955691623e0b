"""The claimed path ran, and only where claimed: per stage and cell, from step logs and scheduler.

A cell is what was asked (a feature, an eval at a concurrency, a cell of the grid) and, where calls
batch as they like, the band of the claim's batches that a step's rows fall in. Cells in which every
decode step in scope ran specialised are told together; every other cell has a verdict of its own,
so that a fallback shows where it was and nowhere else. Which steps are in scope is the scheduler's
word, not the log's. Proofs that do not rest on the log are judged in `rules.proof`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fasttrack.rules.base import Case, Finding, Rule, path_verdict
from fasttrack.schema import (
    AgentRecord,
    FeatureRecord,
    ItemRecord,
    PathRecord,
    PathStep,
    SampleRecord,
    State,
    Verdict,
)

MOST_NAMED = 4


def _judge(case: Case, stage: str) -> Iterator[Verdict]:
    records = [record for record in case.records(PathRecord) if record.stage == stage]
    for arm in ("base", "candidate"):
        chosen = [record for record in records if record.arm == arm]
        steps = sum(len(record.steps) for record in chosen)
        found = _broken(chosen, arm)
        if found is None and arm == "base":
            found = State.PASS, "OK", f"{steps} stock steps"
        if found is not None:
            yield path_verdict(case, stage, f"{stage}/{arm}", found, steps)
        else:
            yield from _cells(case, stage, chosen)


def _broken(records: Sequence[PathRecord], arm: str) -> Finding | None:
    """What spoils the evidence of a whole arm."""
    if not any(len(record.steps) for record in records):
        return State.MISSING, "NO-RECORDS", f"no step of the {arm} arm left path evidence"
    for record in records:
        told = mismatch(record)
        if told:
            return State.FAIL, "PATH-MISMATCH", f"{record.cell}: {told}"
    wrong = [
        step.step
        for record in records
        for step in record.steps
        if step.path == "specialised" and (arm == "base" or _prefills(step))
    ]
    if wrong and arm == "base":
        return State.FAIL, "PATH-BASE", f"{len(wrong)} specialised steps in base"
    if wrong:
        return (
            State.FAIL,
            "PATH-PREFILL",
            f"{len(wrong)} specialised steps with prefill tokens, first at step {wrong[0]}",
        )
    return None


def _prefills(step: PathStep) -> bool:
    """Whether a step is more than decodes. One new token of every request is a decode to an engine,
    also where it is the last one of a prompt, or its only one: the log does not tell these two."""
    return step.prefill_tokens > 0 and step.tokens > step.requests


@dataclass
class _Seen:
    """Decode steps in scope of one cell, counted in one pass: a long run has millions."""

    specialised: int = 0
    fallen: Counter[str] = field(default_factory=Counter)
    """Reasons of steps that ran stock."""


def _cells(case: Case, stage: str, records: Sequence[PathRecord]) -> Iterator[Verdict]:
    """The candidate's cells: one verdict for those exercised, one for each that was not."""
    seen, with_prefill = _count(case, stage, records)
    last_tokens = sum(
        step.path == "specialised" and step.prefill_tokens > 0
        for record in records
        for step in record.steps
    )
    missing = _expected(case, stage) - {record.cell for record in records}
    told = {_name(stage, cell): _finding(one) for cell, one in seen.items()} | {
        _name(stage, cell): (State.NOT_EXERCISED, "PATH-NONE", "left no path evidence")
        for cell in missing
    }
    steps = sum(len(record.steps) for record in records)
    specialised = sum(one.specialised for one in seen.values())
    fallen = sum((one.fallen for one in seen.values()), Counter[str]())
    bad = {cell: found for cell, found in told.items() if found[0] is not State.PASS}
    if not specialised:
        reasons = dict(fallen.most_common(3))
        detail = f"no specialised step in {_named(told) or 'any call'}; reasons {reasons}"
        yield path_verdict(
            case, stage, f"{stage}/candidate", (State.NOT_EXERCISED, "PATH-NONE", detail), steps
        )
        return
    good = len(told) - len(bad)
    detail = f"{specialised} specialised decode steps in {good} cells; "
    detail += f"{with_prefill} steps with prefill, "
    detail += f"all stock but {last_tokens} of last tokens" if last_tokens else "all stock"
    summary: Finding = State.PASS, "OK", detail
    if bad:
        summary = State.PASS, "OK", f"{detail}; not in {_named(bad)}"
    if not good:
        summary = State.FAIL, "PATH-FALLBACK", f"decode steps ran stock in {_named(bad)}"
    yield path_verdict(case, stage, f"{stage}/candidate", summary, steps)
    for cell, found in bad.items():
        count = seen[cell].fallen.total() if cell in seen else 0
        yield path_verdict(case, stage, cell, found, count)


def _named(cells: Mapping[str, Finding]) -> str:
    names = [cell.split("/candidate/")[-1] for cell in cells]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _name(stage: str, cell: str) -> str:
    return f"{stage}/candidate/{cell.removeprefix(f'{stage}/')}"


def _finding(seen: _Seen) -> Finding:
    reasons = ", ".join(f"{count}x {why}" for why, count in seen.fallen.most_common(3))
    if not seen.specialised:
        told = f"{seen.fallen.total()} decode steps, none specialised: {reasons}"
        return State.NOT_EXERCISED, "PATH-NONE", told
    if seen.fallen:
        told = f"{seen.fallen.total()} pure decode steps ran stock, {seen.specialised} did not: "
        return State.FAIL, "PATH-FALLBACK", told + reasons
    return State.PASS, "OK", ""


def _count(case: Case, stage: str, records: Sequence[PathRecord]) -> tuple[dict[str, _Seen], int]:
    """Decode steps in scope by cell, and the number of steps with prefill."""
    batches = sorted(case.target.grid.batch)
    bands = [
        *(
            f"{below + 1}-{batch}" if below + 1 < batch else f"{batch}"
            for below, batch in zip([0, *batches], batches, strict=False)
        ),
        f"{batches[-1] + 1}+",
    ]
    drafting = {
        cell.id: cell.batch * cell.lane_tokens
        for cell in case.claim.cells(case.run.target)
        if cell.draft_tokens
    }
    seen: dict[str, _Seen] = {}
    with_prefill = 0
    for record in records:
        drafted = set(record.drafted)
        for index, ((decode, prefill), step) in enumerate(
            zip(record.scheduled, record.steps, strict=False)
        ):
            with_prefill += prefill > 0
            if prefill or not decode:
                continue
            # Who puts draft tokens into the grid claims the steps in which every row has them.
            whole = stage == "perf" and decode == drafting.get(record.cell)
            if index in drafted and not whole:
                continue
            fast = step.path == "specialised"
            if not fast and not whole and decode > batches[-1]:
                continue  # more rows than any claimed batch
            cell = record.cell
            if stage != "perf":
                cell += f"/rows={bands[bisect_left(batches, decode)]}"
            one = seen.setdefault(cell, _Seen())
            if fast:
                one.specialised += 1
            else:
                one.fallen[step.reason] += 1
    return seen, with_prefill


def _expected(case: Case, stage: str) -> set[str]:
    """Calls of the candidate that other records tell of, by the cell of their path record."""
    if stage == "path":
        return set()
    if stage == "features":
        return {
            f"features/{record.feature}"
            for record in case.records(FeatureRecord)
            if record.arm == "candidate" and record.status == "observed"
        }
    if stage == "evals":
        return {
            f"evals/{record.eval}/{record.repeat}/concurrency={record.concurrency}"
            for record in case.records(ItemRecord)
            if record.arm == "candidate"
        }
    return {
        record.cell
        for record in case.records(SampleRecord)
        if record.arm == "candidate" and not record.cell.startswith("prefill/")
    } | {
        record.cell
        for record in case.records(AgentRecord)
        if record.arm == "candidate" and record.status == "ok"
    }


def mismatch(record: PathRecord) -> str:
    """Where the step log contradicts the scheduler; empty if nowhere.

    The engine may run a last step that the harness did not wait for; what the log says of it counts
    for nothing good. A draft row decodes for the scheduler and prefills for the log, never the
    other way round, and only in steps that carry drafts.
    """
    scheduled = [decode + prefill for decode, prefill in record.scheduled]
    logged = [step.tokens for step in record.steps[: len(scheduled)]]
    if scheduled != logged:
        return (
            f"scheduler ran {len(scheduled)} steps of {sum(scheduled)} tokens, the log has "
            f"{len(logged)} of {sum(logged)}"
        )
    drafted = set(record.drafted)
    for index, (step, (_, prefill)) in enumerate(zip(record.steps, record.scheduled, strict=False)):
        if step.prefill_tokens < prefill or (
            step.prefill_tokens > prefill and index not in drafted
        ):
            return (
                f"step {step.step} prefilled {prefill} tokens, the log says {step.prefill_tokens}"
            )
    return ""


def _rule(stage: str) -> Rule:
    return Rule("path", stage, lambda case: _judge(case, stage))


RULES = tuple(_rule(stage) for stage in ("features", "evals", "perf", "path"))
