"""Switched-off and out-of-scope behaviour is stock."""

from __future__ import annotations

from collections.abc import Iterator

from fasttrack.rules.base import Case, Rule, missing
from fasttrack.schema import IsolationRecord, State, Verdict

SUBJECTS = ("scope", "neighbour")


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per subject; every check of its records must hold."""
    for subject in SUBJECTS:
        records = [r for r in case.records(IsolationRecord) if r.subject == subject]
        checks = [check for record in records for check in record.checks]
        if not checks:
            yield missing("isolation", subject, case, "isolation")
            continue
        broken = [check for check in checks if not check.holds]
        reason = "ISO-SCOPE" if subject == "scope" else "ISO-DIFF"
        yield Verdict(
            rule="isolation",
            cell=subject,
            state=State.FAIL if broken else State.PASS,
            reason=reason if broken else "OK",
            detail="; ".join(
                f"{c.name}: {c.observed!r}, expected {c.relation} {c.bound!r}" for c in broken
            )
            or f"{len(checks)} checks hold: {', '.join(c.name for c in checks)}",
            n=len(checks),
            next=case.reproduce("isolation") if broken else "",
        )


RULES = (Rule("isolation", "isolation", judge),)
