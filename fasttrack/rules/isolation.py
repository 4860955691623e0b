"""Switched-off and out-of-scope behaviour is stock.

Every check must hold, and every finding must be one that policy lets be: a file it names, or one of
the source scan that the claim declares. What differs at run time cannot be declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from fasttrack.rules.base import Case, Rule, missing
from fasttrack.schema import Check, IsolationRecord, Policy, State, Verdict
from fasttrack.schema.record import IsolationFinding

UNITS: Mapping[str, Mapping[str, str]] = {
    "scope": {
        "scope": "ISO-SCOPE",
        "protected": "ISO-PROTECTED",
        "imports": "ISO-IMPORT",
        "patches": "ISO-PATCH",
        "environment": "ISO-ENV",
        "torch": "ISO-TORCH",
    },
    "neighbour": {"neighbour": "ISO-DIFF", "code": "ISO-CODE", "switched-on": "ISO-ON"},
    "model": {"model": "ISO-SPREAD"},
}
"""Unit of the stage -> the subjects it leaves records of, each with the code of its failures."""
MOST_TOLD = 6
"""Findings in a verdict's sentence; the records hold all of them."""


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per subject."""
    for subject, code in (pair for unit in UNITS.values() for pair in unit.items()):
        records = [r for r in case.records(IsolationRecord) if r.subject == subject]
        if not any(record.checks for record in records):
            yield missing("isolation", subject, case, "isolation")
            continue
        yield _verdict(case, subject, code, records)


def _verdict(case: Case, subject: str, code: str, records: list[IsolationRecord]) -> Verdict:
    checks = [check for record in records for check in record.checks]
    findings = [finding for record in records for finding in record.findings]
    broken = [check for check in checks if not check.holds]
    open_ = [finding for finding in findings if not allowed(finding, case.policy)]
    reason, state = "OK", State.PASS
    detail = f"{len(checks)} checks hold: {', '.join(c.name for c in checks)}"
    if any(check.name == "refused" and check.observed is True for check in checks):
        reason, detail = "ISO-REFUSED", "; ".join(r.message for r in records)
    elif broken or open_:
        reason, state = open_[0].code if open_ else code, State.FAIL
        detail = _listed([*map(_finding, open_), *map(_check, broken)])
    elif findings:
        reason = "ISO-DECLARED"
        detail = _listed([*map(_finding, findings)])
    return Verdict(
        rule="isolation",
        cell=subject,
        state=state,
        reason=reason,
        detail=detail,
        n=len(checks) + len(findings),
        next=case.reproduce("isolation") if state is not State.PASS else "",
    )


def allowed(finding: IsolationFinding, policy: Policy) -> bool:
    """Whether policy lets a finding be."""
    if finding.code == "ISO-SCOPE":
        return any(fnmatchcase(finding.where, p) for p in policy.gate.companion_paths)
    if finding.code == "ISO-PROTECTED":
        return any(fnmatchcase(finding.where, p) for p in policy.isolation.allowed_paths)
    return bool(finding.exempt) and finding.code in policy.isolation.exemptible


def _finding(finding: IsolationFinding) -> str:
    said = f" (declared: {finding.exempt})" if finding.exempt else ""
    return f"{finding.where}: {finding.what}, {finding.why}{said}"


def _check(check: Check) -> str:
    return f"{check.name}: {check.observed!r}, expected {check.relation} {check.bound!r}"


def _listed(sentences: list[str]) -> str:
    more = len(sentences) - MOST_TOLD
    told = "; ".join(sentences[:MOST_TOLD])
    return f"{told}; and {more} more" if more > 0 else told


RULES = (Rule("isolation", "isolation", judge),)
