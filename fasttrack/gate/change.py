"""What a diff demands: the steps from two commits to decisions.

1. rules       policy and who may sign, from base, the tip of the protected branch
2. claims      every claim.toml of head; those whose scope, or own file, the diff touches
3. scope       changed files lie in a touched scope, guarded ones in some scope
4. evidence    each result file that the change brings: verified, judged, and about these files
5. coverage    each touched optimization has such a file, brought now or there before
6. waivers     what a maintainer set aside, for exactly this change

A claim covers files by its [scope].paths, so it may lie beside its code (`optimizations/<name>/`)
or anywhere in a checkout whose code is elsewhere (`vllm/models/<model>/**`). Reading is `diff`'s,
steps 4 and 5 are `coverage`'s. Read by the CLI.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from fasttrack import claim as claims
from fasttrack.bundle.git import RESULT_FILES, GitError, Repository
from fasttrack.errors import UsageError
from fasttrack.gate import coverage, waiver
from fasttrack.gate.diff import Diff, named
from fasttrack.gate.evidence import Reader
from fasttrack.gate.findings import Decision, Finding, GateResult
from fasttrack.schema import Claim, Policy
from fasttrack.verify import identity

POLICY_FILE = f"{RESULT_FILES}policy.toml"
SIGNER_FILES = (f"{RESULT_FILES}allowed_signers", f"{RESULT_FILES}github_keys.json")


def gate(
    folder: Path, base: str, head: str, *, reproducers: int = 0, now: datetime | None = None
) -> GateResult:
    """Judge the change from `base` to `head`, two references of the repository at `folder`.

    `reproducers` can only raise what policy demands; `now` is the reader's clock. Raises
    `UsageError`: USE-003 for a repository or references that cannot be read, and as
    `claim.load_policy` and `identity.parse` do for rules on base that cannot be.
    """
    with tempfile.TemporaryDirectory(prefix="fasttrack-gate-") as scratch:
        try:
            repository = Repository(folder)
            diff = Diff(repository, repository.commit(base), repository.commit(head), Path(scratch))
            return _judge(diff, _rules(diff, reproducers), now or datetime.now(UTC))
        except GitError as error:
            raise UsageError(
                "USE-003",
                f"{folder}: {error}",
                next_step="git fetch both branches with their history, then repeat",
            ) from error


def _judge(diff: Diff, reader: Reader, now: datetime) -> GateResult:
    files = coverage.brought(diff, reader)
    about = {f.verification.claim.name for f in files.values() if f.verification is not None}
    touched = {
        path: claim
        for path, claim in diff.head_claims.items()
        if path in diff.code or claim.name in about or any(map(claim.scope.covers, diff.code))
    }
    decisions = [
        _scope(diff, touched, reader.policy),
        *(coverage.of(diff, reader, path, claim, files) for path, claim in touched.items()),
        *files.values(),
    ]
    facts = [
        ("protected branch", diff.base),
        ("change", f"{diff.head}, {len(diff.paths)} files"),
        ("policy", f"version {reader.policy.version}, "
                   f"{POLICY_FILE if _on_base(diff, POLICY_FILE) else 'the built-in one'}"),
    ]  # fmt: skip
    if any(decision.status for decision in decisions):
        facts.append(("digest for waivers", diff.sha256))
        decisions = _waive(diff, reader, decisions, now)
    return GateResult(tuple(decisions), tuple(facts))


def _rules(diff: Diff, reproducers: int) -> Reader:
    source = diff.read(diff.base, POLICY_FILE, claims.MAX_BYTES)
    policy = Policy() if source is None else claims.parse_policy(source, POLICY_FILE)
    wanted = max(reproducers, policy.gate.reproducers)
    demands = policy.gate.model_copy(update={"reproducers": wanted})
    lists = [
        identity.parse(data, name)
        for name in SIGNER_FILES
        if (data := diff.read(diff.base, name, identity.MAX_BYTES)) is not None
    ]
    allowed = [permission for found in lists for permission in found] if lists else None
    return Reader(policy.model_copy(update={"gate": demands}), allowed)


def _on_base(diff: Diff, path: str) -> bool:
    return path in diff.repository.files(diff.base)


def _scope(diff: Diff, touched: Mapping[str, Claim], policy: Policy) -> Decision:
    """Step 3: the change as a whole."""
    findings = [
        Finding("GAT-004", why)
        for path, why in diff.claims(diff.head)
        if isinstance(why, str) and path in diff.code
    ]
    names = Counter(claim.name for claim in diff.head_claims.values())
    findings += [
        Finding("GAT-004", f"{names[name]} claims are named {name}")
        for name in sorted({claim.name for claim in touched.values()})
        if names[name] > 1
    ]
    orphans = _orphans(diff, policy)
    if orphans:
        findings.append(Finding("GAT-002", f"in no claim's scope: {named(orphans)}"))
    if touched:
        outside = [
            path
            for path in diff.code
            if path not in {*touched, *orphans}
            and not any(claim.scope.covers(path) for claim in touched.values())
            and not _matches(path, policy.gate.companion_paths)
        ]
        if outside:
            findings.append(Finding("GAT-003", f"outside the scope: {named(outside)}"))
        rules = [path for path in (POLICY_FILE, *SIGNER_FILES) if path in diff.paths]
        if rules:
            findings.append(Finding("GAT-009", f"changed here: {named(rules)}"))
    told = ", ".join(sorted(claim.name for claim in touched.values()))
    note = f"touches {told}" if told else "touches no optimization"
    return Decision("change", f"{diff.base[:12]}..{diff.head[:12]}", tuple(findings), (note,))


def _orphans(diff: Diff, policy: Policy) -> list[str]:
    """Files of head in no scope: changed ones that are guarded, and those a claim let go of."""
    let_go = [
        claim
        for path, claim in diff.claims(diff.base)
        if isinstance(claim, Claim) and path in diff.code
    ]
    covered = [claim.scope.covers for claim in diff.head_claims.values()]
    return sorted(
        path
        for path in diff.files
        if (
            (path in diff.code and _matches(path, policy.gate.guarded_paths))
            or (not path.startswith(RESULT_FILES) and any(c.scope.covers(path) for c in let_go))
        )
        and not any(covers(path) for covers in covered)
    )


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _waive(diff: Diff, reader: Reader, decisions: list[Decision], now: datetime) -> list[Decision]:
    """Step 6: findings that a good waiver covers say so; a bad one is a finding itself."""
    authors = {
        signer.public_key: signer.principal
        for decision in decisions
        if decision.verification is not None
        for signer in decision.verification.signers
    }
    good: list[waiver.Waiver] = []
    bad: list[Finding] = []
    for path in diff.files:
        if not path.startswith(RESULT_FILES) or not path.endswith(waiver.SUFFIX):
            continue
        try:
            source = diff.read(diff.head, path, waiver.MAX_BYTES) or b""
            told = waiver.read(source)
            signature = diff.read(diff.head, f"{path}.sig", waiver.MAX_BYTES)
            waiver.check(
                told, source, signature, change_sha256=diff.sha256, policy=reader.policy,
                allowed=reader.allowed or (), authors=authors, now=now,
            )  # fmt: skip
            good.append(told)
        except waiver.Refused as error:
            # One that an earlier change brought is about other files: it stays, and does nothing.
            if path in diff.paths or f"{path}.sig" in diff.paths:
                bad.append(Finding(error.code, f"{path}: {error}"))
    first, *others = (waiver.apply(decision, good) for decision in decisions)
    return [replace(first, findings=(*first.findings, *bad)), *others]
