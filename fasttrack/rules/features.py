"""Each required feature is kept, or refused exactly as declared."""

from __future__ import annotations

from collections.abc import Iterator

from fasttrack.rules.base import Case, Rule, missing
from fasttrack.schema import FeatureRecord, State, Verdict


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per feature that policy requires or that left records."""
    records = case.records(FeatureRecord)
    names = dict.fromkeys((*case.policy.required_features, *(r.feature for r in records)))
    for feature in filter(case.wants, names):
        base = next((r for r in records if r.feature == feature and r.arm == "base"), None)
        mine = next((r for r in records if r.feature == feature and r.arm == "candidate"), None)
        if base is None or mine is None:
            yield missing("features", feature, case, "features")
            continue
        state, reason, detail = _compare(case, feature, base, mine)
        yield Verdict(
            rule="features",
            cell=feature,
            state=state,
            reason=reason,
            detail=detail,
            n=len(mine.checks),
            next="" if reason in ("OK", "FEAT-DECLARED") else case.reproduce("features", feature),
        )


def _compare(
    case: Case, feature: str, base: FeatureRecord, mine: FeatureRecord
) -> tuple[State, str, str]:
    declared = case.claim.features.refused.get(feature)
    if mine.status == "refused":
        if declared is not None:
            return State.REFUSED_AS_DECLARED, "FEAT-DECLARED", declared
        if base.status != "refused":
            return State.FAIL, "FEAT-UNDECLARED", f"refused: {mine.message}"
        if feature not in case.policy.required_features:
            return State.UNSUPPORTED, "FEAT-BASE", f"not offered here: {base.message}"
    broken = _broken(base)
    if broken:
        return State.INVALID, "FEAT-BASE", f"base: {broken}"
    broken = _broken(mine)
    if broken:
        return State.FAIL, "FEAT-LOST", broken
    return State.PASS, "OK", "; ".join(check.name for check in mine.checks)


def _broken(record: FeatureRecord) -> str:
    if record.status != "observed" or not record.checks:
        return f"{record.status}: {record.message or 'nothing was checked'}"[:400]
    return "; ".join(
        f"{c.name}: {c.observed!r}, expected {c.relation} {c.bound!r}"[:200]
        for c in record.checks
        if not c.holds
    )


RULES = (Rule("features", "features", judge),)
