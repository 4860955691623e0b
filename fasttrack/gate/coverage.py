"""Whether evidence is about the files of a change, and whether each optimization has some.

Owns freshness: a result file counts for head if head's claim and head's in-scope files are those it
was measured from, whatever happened to other files. Steps 4 and 5 of `change`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from fasttrack.bundle.archive import SUFFIX
from fasttrack.bundle.git import RESULT_FILES, scope_digest
from fasttrack.bundle.reader import open_bundle
from fasttrack.errors import VerificationFailed
from fasttrack.gate import evidence
from fasttrack.gate.diff import Diff, named
from fasttrack.gate.evidence import Reader
from fasttrack.gate.findings import Decision, Finding
from fasttrack.schema import Claim
from fasttrack.verify.steps import Verification

MAX_COMMITS = 50
"""How far back the state that was measured is looked for after a rebase."""
MAX_OLD_FILES = 50
"""Result files of earlier changes that are looked at for one optimization, last name first."""


def brought(diff: Diff, reader: Reader) -> dict[str, Decision]:
    """Each result file that the change adds or alters, judged; all of them count."""
    return {
        path: _judge(diff, reader, path)
        for path, letter in sorted(diff.paths.items())
        if letter != "D" and _is_result(path)
    }


def of(
    diff: Diff, reader: Reader, path: str, claim: Claim, files: Mapping[str, Decision]
) -> Decision:
    """The decision about one touched optimization, whose claim lies at `path`."""
    findings = list(_moved(diff, claim))
    notes = []
    mine = [
        found
        for file in files.values()
        if (found := file.verification) is not None and found.claim.name == claim.name
    ]
    unread = [name for name, file in files.items() if file.verification is None]
    if mine:
        notes.append(f"evidence brought for {', '.join(sorted({v.run.target for v in mine}))}")
    elif unread:
        notes.append(f"what {named(unread)} is about could not be read")
    else:
        there = _there_before(diff, reader, claim)
        if there is None:
            findings.append(Finding("GAT-001", f"no result file for {claim.name}"))
        else:
            findings += there.findings
            notes.append(f"evidence there before: {there.name}")
    others = sorted({name for name, target in claim.targets.items() if target.role == "evidence"}
                    - {v.run.target for v in mine})  # fmt: skip
    if mine and others:
        notes.append(f"no evidence brought for {', '.join(others)}")
    return Decision("optimization", path, tuple(findings), tuple(notes))


def _is_result(path: str) -> bool:
    return path.startswith(RESULT_FILES) and path.endswith(SUFFIX)


def _judge(diff: Diff, reader: Reader, path: str) -> Decision:
    decision = evidence.judge(diff.fetch(path), path, reader)
    if decision.verification is None:
        return decision
    stale = tuple(_stale(diff, decision.verification))
    return replace(decision, findings=(*decision.findings, *stale))


def _stale(diff: Diff, found: Verification) -> Iterator[Finding]:
    """In what a verified file is not about head."""
    claim = next((c for c in diff.head_claims.values() if c.name == found.claim.name), None)
    if claim is None:
        yield Finding("GAT-006", f"it is about {found.claim.name}, which head does not have")
        return
    if claim.digest() != found.claim.digest():
        yield Finding(
            "GAT-007",
            f"claim {found.claim.digest()[:12]} was measured, head has {claim.digest()[:12]}",
        )
    source = found.provenance.source
    if source.get("scope_sha256") == diff.scope_sha256(claim):
        return
    wanted, commit = str(source.get("scope_sha256")), str(source.get("commit"))
    then = _measured_at(diff, claim, wanted, commit)
    if then is None:
        yield Finding(
            "GAT-006",
            f"measured on commit {commit[:12]}, from in-scope files that this change never had",
        )
        return
    since = [
        path
        for path in diff.repository.changed(then, diff.head)
        if not path.startswith(RESULT_FILES) and claim.scope.covers(path)
    ]
    yield Finding("GAT-005", f"changed since commit {then[:12]} was measured: {named(since)}")


def _measured_at(diff: Diff, claim: Claim, scope_sha256: str, commit: str) -> str | None:
    """The commit of head's history with the measured files: the same one, or what a rebase made
    of it."""
    if diff.repository.is_ancestor(commit, diff.head):
        return commit
    covers = claim.scope.covers
    for old in diff.repository.history(diff.head, MAX_COMMITS):
        if scope_digest(diff.repository, old, covers)[1] == scope_sha256:
            return old
    return None


def _moved(diff: Diff, claim: Claim) -> Iterator[Finding]:
    """In-scope files that base changed since head left it, and that head does not have so."""
    if diff.fork == diff.base:
        return
    there = diff.repository.files(diff.base)
    moved = [
        path
        for path in diff.repository.changed(diff.fork, diff.base)
        if not path.startswith(RESULT_FILES)
        and claim.scope.covers(path)
        and there.get(path) != diff.files.get(path)
    ]
    if moved:
        yield Finding("GAT-008", f"changed on the protected branch: {named(moved)}")


def _there_before(diff: Diff, reader: Reader, claim: Claim) -> Decision | None:
    """The best result file of earlier changes: a fresh and good one, else a fresh, else a stale."""
    pattern = f"{claim.name}-*{SUFFIX}"
    names = sorted(
        (path for path in diff.files
         if _is_result(path) and fnmatchcase(path.rpartition("/")[2], pattern)),
        reverse=True,
    )[:MAX_OLD_FILES]  # fmt: skip
    wanted = diff.scope_sha256(claim)
    fresh = [path for path in names if _says(diff.fetch(path), wanted)]
    best: Decision | None = None
    for path in fresh or names:
        judged = _judge(diff, reader, path)
        if judged.verification is None or judged.verification.claim.name != claim.name:
            continue
        if not judged.status or not fresh:
            return judged
        best = best or judged
    return best


def _says(path: Path, scope_sha256: str) -> bool:
    """Whether a file says that it was measured from these in-scope files."""
    try:
        with open_bundle(path) as bundle:
            return bundle.provenance.source.get("scope_sha256") == scope_sha256
    except VerificationFailed:
        return False
