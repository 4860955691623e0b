"""Compiled kernels touch the step's data only behind the grid-dependency wait.

A kernel that is launched before the one ahead of it has ended may read weights at once, and must
wait before it reads or writes anything else. Source order says nothing: the compiler moves loads.
Judged are the accesses some path of the machine code makes before a wait, as the audit found them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fasttrack.rules.base import Case, Finding, Rule, missing
from fasttrack.schema import CompiledRecord, EarlyAccess, State, Verdict

CELL = "compiled"
CONTROLS = {
    "late_load": "OK",
    "static_weight": "OK",
    "static_weight_by_tma": "OK",
    "early_load": "HOIST-EARLY-LOAD",
    "weight_not_declared": "HOIST-EARLY-LOAD",
    "early_tma": "HOIST-EARLY-LOAD",
    "moved_by_the_compiler": "HOIST-EARLY-LOAD",
    "wait_in_one_branch": "HOIST-EARLY-LOAD",
    "wait_at_the_end_of_a_loop": "HOIST-EARLY-LOAD",
    "pointer_from_memory": "HOIST-UNREADABLE",
    "early_store": "HOIST-EARLY-STORE",
    "no_wait": "HOIST-NO-WAIT",
}
"""Planted kernels that every audit also compiles, and what must be said of each."""


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per kernel and architecture."""
    records = case.records(CompiledRecord)
    if not records and case.wants(CELL):
        yield missing("hoist", CELL, case, "kernels")
    for record in records:
        if record.control is not None or not case.wants(record.cell):
            continue
        state, reason, detail = finding_among(record, records)
        yield Verdict(
            rule="hoist",
            cell=record.cell,
            state=state,
            reason=reason,
            detail=detail,
            deciding=state is not State.UNSUPPORTED,
            n=sum(len(access.offsets) for access in record.early),
            next="" if reason in ("OK", "HOIST-NONE") else case.reproduce("kernels", record.cell),
        )


def finding_among(record: CompiledRecord, records: Sequence[CompiledRecord]) -> Finding:
    """`finding`, where a pass also needs the planted kernels of its architecture judged as they
    must be, and every function of its cubin named by some record."""
    state, reason, detail = finding(record)
    if state is not State.PASS:
        return state, reason, detail
    if blind := _blind(record, records):
        return State.INSENSITIVE, "HOIST-INSENSITIVE", blind
    if left := _left_over(record, records):
        told = f"the cubin also holds {left}, which no declaration names"
        return State.FAIL, "HOIST-UNREADABLE", told
    return state, reason, detail


def finding(record: CompiledRecord) -> Finding:
    """State, reason and one sentence about one kernel by itself."""
    if record.status == "none":
        return State.UNSUPPORTED, "HOIST-NONE", "not applicable: no compiled kernels"
    if record.status == "undeclared":
        return State.FAIL, "HOIST-UNDECLARED", record.message
    if record.status == "unavailable":
        return State.MISSING, "HOIST-TOOLS", record.message
    if record.status != "ok":
        return State.FAIL, "HOIST-UNREADABLE", f"{record.status}: {record.message}"
    if not record.waits and not record.dependent:
        return State.PASS, "OK", "launched in stream order: there is nothing to wait for"
    wrong = [access for access in record.early if not allowed(access, record)]
    for reason in ("HOIST-EARLY-LOAD", "HOIST-EARLY-STORE", "HOIST-UNREADABLE"):
        of_kind = [access for access in wrong if _reason(access) == reason]
        if of_kind:
            return State.FAIL, reason, _sentence(of_kind, record)
    if not record.waits:
        guarded = " but under a predicate" if record.guarded_waits else ""
        return State.FAIL, "HOIST-NO-WAIT", f"no path meets a wait{guarded}"
    early = [record.parameters[index] for access in record.early for index in access.parameters]
    behind = ", ".join(f"{offset:#x}" for offset in record.waits)
    before = f"only {', '.join(sorted(set(early)))} before it" if early else "nothing before it"
    return State.PASS, "OK", f"wait at {behind}; {before}"


def allowed(access: EarlyAccess, record: CompiledRecord) -> bool:
    """Whether an access may come before the wait: every parameter it derives from permits it."""
    if access.unresolved or not access.parameters or access.access == "unknown":
        return False
    permitted = {*record.own, *(record.static if access.access == "load" else ())}
    return set(access.parameters) <= permitted


def _reason(access: EarlyAccess) -> str:
    if access.unresolved or access.access == "unknown":
        return "HOIST-UNREADABLE"
    return "HOIST-EARLY-LOAD" if access.access == "load" else "HOIST-EARLY-STORE"


def _sentence(accesses: Sequence[EarlyAccess], record: CompiledRecord) -> str:
    told = []
    for access in accesses[:3]:
        names = ", ".join(record.parameters[index] for index in access.parameters)
        whose = " and ".join(filter(None, (names and f"parameter {names}", access.unresolved)))
        more = f" and {len(access.offsets) - 1} more" if len(access.offsets) > 1 else ""
        told.append(f"{access.first} at {access.offsets[0]:#x}{more}, from {whose}")
    rest = f"; {len(accesses) - 3} more kinds" if len(accesses) > 3 else ""
    waits = ", ".join(f"{offset:#x}" for offset in record.waits) or "nowhere"
    return f"before the wait ({waits}): {'; '.join(told)}{rest}"


def _blind(record: CompiledRecord, records: Sequence[CompiledRecord]) -> str:
    """Which planted kernel of the same architecture was not judged as it must be."""
    planted = {each.control: each for each in records if each.control and each.arch == record.arch}
    for control, expected in CONTROLS.items():
        if control not in planted:
            return f"{control} was not planted for {record.arch}"
        _, reason, detail = finding(planted[control])
        if reason != expected:
            return f"{control} was judged {reason}, not {expected}: {detail}"
    return ""


def _left_over(record: CompiledRecord, records: Sequence[CompiledRecord]) -> str:
    """A function of the same cubin that no record is about."""
    judged = {each.function for each in records if each.cubin_sha256 == record.cubin_sha256}
    return next((name for name in record.functions if name not in judged), "")


RULES = (Rule("hoist", "kernels", judge),)
