"""What compute-sanitizer found in the ops that run on CUDA; silent where there are none."""

from __future__ import annotations

from collections.abc import Iterator

from fasttrack.rules.base import Case, Rule
from fasttrack.schema import SanitizerRecord, State, Verdict


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per op and tool. A tool that is not installed is told and does not decide."""
    for record in case.records(SanitizerRecord):
        state, reason, detail = State.PASS, "OK", "no finding"
        if record.status == "errors":
            state, reason = State.FAIL, "NUM-SANITIZER"
            detail = f"{record.errors} findings, first: {record.message}"
        elif record.status == "failed":
            state, reason, detail = State.INCONCLUSIVE, "NUM-UNSANITIZED", record.message
        elif record.status == "not_installed":
            state, reason = State.UNSUPPORTED, "NUM-UNSANITIZED"
            detail = "compute-sanitizer is not installed there"
        yield Verdict(
            rule="sanitizer",
            cell=f"{record.op}/{record.tool}",
            state=state,
            reason=reason,
            detail=detail[:500],
            deciding=record.status != "not_installed",
            n=1,
            next="" if state is State.PASS else case.reproduce("kernels"),
        )


RULES = (Rule("sanitizer", "kernels", judge),)
