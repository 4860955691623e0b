"""What compute-sanitizer found in the ops that run on CUDA; not applicable where there are none."""

from __future__ import annotations

from collections.abc import Iterator

from fasttrack.rules.base import Case, Rule, missing
from fasttrack.schema import ConductRecord, KernelRecord, SanitizerRecord, State, Verdict

CELL = "sanitizer"


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per op and tool. A tool that is not installed is told and does not decide.

    It runs once per op and not per cell, so a run of chosen cells has none.
    """
    if case.run.cell is not None:
        return
    records = case.records(SanitizerRecord)
    conduct = case.records(ConductRecord)
    on_cuda = {record.op for record in conduct if record.device.get("kind") == "cuda"}
    for op in sorted(on_cuda - {record.op for record in records}):
        yield missing("sanitizer", f"{op}/memcheck", case, "kernels")
    if not case.records(KernelRecord):
        yield missing("sanitizer", CELL, case, "kernels")
    elif not on_cuda and not records:
        yield _verdict(case, CELL, State.UNSUPPORTED, "NUM-UNSANITIZED", "no op ran on CUDA")
    for record in records:
        state, reason, detail = State.PASS, "OK", "no finding"
        if record.status == "errors":
            state, reason = State.FAIL, "NUM-SANITIZER"
            detail = f"{record.errors} findings, first: {record.message}"
        elif record.status == "failed":
            state, reason, detail = State.INCONCLUSIVE, "NUM-UNSANITIZED", record.message
        elif record.status == "not_installed":
            state, reason = State.UNSUPPORTED, "NUM-UNSANITIZED"
            detail = "compute-sanitizer is not installed there"
        yield _verdict(case, f"{record.op}/{record.tool}", state, reason, detail)


def _verdict(case: Case, cell: str, state: State, reason: str, detail: str) -> Verdict:
    return Verdict(
        rule="sanitizer",
        cell=cell,
        state=state,
        reason=reason,
        detail=detail[:500],
        deciding=state is not State.UNSUPPORTED,
        n=1,
        next="" if state in (State.PASS, State.UNSUPPORTED) else case.reproduce("kernels"),
    )


RULES = (Rule("sanitizer", "kernels", judge),)
