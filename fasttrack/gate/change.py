"""What a diff demands: which optimizations it touches, and whether its evidence is about them.

Owns the path from two commits to decisions. Nothing is checked out and nothing of the change is
run: claims, result files and waivers are read from git's objects at `head`; policy and signers come
from `base`, the tip of the protected branch. The steps:

1. rules       policy and allowed signers, from base
2. claims      every claim.toml of head; those whose scope, or own file, the diff touches
3. scope       changed files lie in a touched scope or beside it, guarded ones under a claim
4. evidence    each result file that the change brings, verified and judged
5. freshness   claim and in-scope files of head are those the file was measured from
6. coverage    each touched optimization has such a file, brought now or there before
7. waivers     what a maintainer set aside, for exactly this change

A claim covers files by its [scope].paths, so it may lie beside its code (`optimizations/<name>/`)
or anywhere in a checkout whose code is elsewhere (`vllm/models/<model>/**`). Read by the CLI.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath

from fasttrack import claim as claims
from fasttrack.bundle import layout
from fasttrack.bundle.archive import SUFFIX
from fasttrack.bundle.git import RESULT_FILES, GitError, Repository, scope_digest
from fasttrack.bundle.reader import open_bundle
from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.gate import evidence, waiver
from fasttrack.gate.evidence import Reader
from fasttrack.gate.findings import Decision, Finding, GateResult
from fasttrack.schema import Claim
from fasttrack.schema._json import digest
from fasttrack.verify import identity

POLICY_FILE = f"{RESULT_FILES}policy.toml"
SIGNERS_FILE = f"{RESULT_FILES}allowed_signers"
NOT_CLAIMS = ("templates", RESULT_FILES.rstrip("/"))
"""Folders whose claim.toml are no claims of the repository: texts to copy, and copies."""
MAX_OLD_FILES = 50
"""Result files of earlier changes that are looked at for one optimization, newest name first."""
_MOST_NAMED = 8


@dataclass
class Change:
    """A diff, and what was found out about it so far."""

    repository: Repository
    base: str
    head: str
    scratch: Path
    now: datetime
    reader: Reader = field(default_factory=Reader)

    @cached_property
    def fork(self) -> str:
        """Where head left base."""
        return self.repository.merge_base(self.base, self.head)

    @cached_property
    def paths(self) -> dict[str, str]:
        """Changed path to A, D, M or T."""
        return self.repository.changed(self.fork, self.head)

    @cached_property
    def files(self) -> dict[str, str]:
        """Path to object of every file at head; result files among them."""
        return {path: blob.oid for path, blob in self.repository.files(self.head).items()}

    @cached_property
    def claims(self) -> dict[str, Claim | str]:
        """Path of each claim.toml at head to its claim, or to why it cannot be read."""
        found: dict[str, Claim | str] = {}
        for path in self.files:
            parts = PurePosixPath(path).parts
            if parts[-1] == claims.FILE and not set(NOT_CLAIMS) & set(parts[:-1]):
                try:
                    source = self.read(self.head, path, claims.MAX_BYTES) or b""
                    found[path] = claims.parse_source(source, path)
                except (GitError, UsageError) as error:
                    found[path] = error.cause if isinstance(error, UsageError) else str(error)
        return found

    @cached_property
    def sha256(self) -> str:
        """Digest of everything that is changed, result files and waivers left out."""
        mine = {path for path in self.paths if not path.startswith(RESULT_FILES)}
        _, kept = scope_digest(self.repository, self.head, mine.__contains__)
        gone = sorted(path for path in mine if self.paths[path] == "D")
        return digest([kept, [name.encode("utf-8", "backslashreplace").decode() for name in gone]])

    def read(self, commit: str, path: str, limit: int) -> bytes | None:
        """Content of a file at a commit, or None where there is none."""
        blob = self.repository.files(commit).get(path)
        return None if blob is None else self.repository.read(blob, limit)

    def fetch(self, path: str) -> Path:
        """A copy of a result file at head; names of the repository never become names here."""
        copy = self.scratch / f"{hashlib.sha256(path.encode(errors='replace')).hexdigest()}{SUFFIX}"
        if not copy.exists():
            for _, size, pieces in self.repository.contents([self.files[path]]):
                if size > layout.MAX_TOTAL_BYTES:
                    raise GitError(f"{path}: {size} bytes are too many")
                with copy.open("wb") as out:
                    out.writelines(pieces)
        return copy

    def scope_sha256(self, claim: Claim) -> str:
        """Digest of head's files in a claim's scope."""
        return scope_digest(self.repository, self.head, claim.scope.covers)[1]


def gate(
    folder: Path, base: str, head: str, *, reproducers: int = 0, now: datetime | None = None
) -> GateResult:
    """Judge the change from `base` (tip of the protected branch) to `head`.

    `folder` is any folder of the repository; `reproducers` raises what policy demands. Raises
    `UsageError` USE-003 for references or a repository that cannot be read, and for a policy or
    list of signers on base that cannot be.
    """
    with tempfile.TemporaryDirectory(prefix="fasttrack-gate-") as scratch:
        try:
            repository = Repository(folder)
            change = Change(
                repository, repository.commit(base), repository.commit(head), Path(scratch),
                now or datetime.now(UTC),
            )  # fmt: skip
            change.reader = _rules(change, reproducers)
            return _judge(change)
        except GitError as error:
            raise UsageError(
                "USE-003",
                f"{folder}: {error}",
                next_step="git fetch the base branch with its history, then repeat",
            ) from error


def _rules(change: Change, reproducers: int) -> Reader:
    """Step 1."""
    policy_source = change.read(change.base, POLICY_FILE, claims.MAX_BYTES)
    signers = change.read(change.base, SIGNERS_FILE, identity.MAX_BYTES)
    own = change.scratch / "policy.toml"
    if policy_source is not None:
        own.write_bytes(policy_source)
    policy = claims.load_policy(own if policy_source is not None else None)
    wanted = max(reproducers, policy.gate.reproducers)
    policy = policy.model_copy(
        update={"gate": policy.gate.model_copy(update={"reproducers": wanted})}
    )
    allowed = change.scratch / "allowed_signers"
    if signers is not None:
        allowed.write_bytes(signers)
    return Reader(policy, allowed if signers is not None else None)


def _judge(change: Change) -> GateResult:
    brought = [path for path, letter in sorted(change.paths.items())
               if letter != "D" and path.startswith(RESULT_FILES) and path.endswith(SUFFIX)]
    files = {path: _fresh(change, evidence.judge(change.fetch(path), path, change.reader))
             for path in brought}  # fmt: skip
    touched = {path: claim for path, claim in change.claims.items()
               if not isinstance(claim, str) and _touches(change, path, claim)}
    about = {f.verification.claim.name for f in files.values() if f.verification is not None}
    touched |= {path: claim for path, claim in change.claims.items()
                if not isinstance(claim, str) and claim.name in about}
    decisions = [
        _scope(change, touched),
        *(_coverage(change, path, claim, files) for path, claim in touched.items()),
        *files.values(),
    ]
    decisions = _waive(change, decisions)
    policy_from = "its own" if POLICY_FILE in _base_files(change) else "built in"
    facts = [
        ("Protected branch", change.base),
        ("Change", f"{change.head}, {len(change.paths)} files"),
        ("Policy", f"{policy_from}, version {change.reader.policy.version}"),
    ]
    if any(finding.status for decision in decisions for finding in decision.findings):
        facts.append(("Digest for a waiver", change.sha256))
    return GateResult(tuple(decisions), tuple(facts))


def _base_files(change: Change) -> set[str]:
    return set(change.repository.files(change.base))


def _touches(change: Change, path: str, claim: Claim) -> bool:
    """Step 2."""
    return any(
        name == path or (not name.startswith(RESULT_FILES) and claim.scope.covers(name))
        for name in change.paths
    )


def _scope(change: Change, touched: dict[str, Claim]) -> Decision:
    """Step 3: the change as a whole."""
    gate_policy = change.reader.policy.gate
    findings: list[Finding] = []
    names: dict[str, str] = {}
    for path, claim in change.claims.items():
        if isinstance(claim, str):
            if path in change.paths:
                findings.append(Finding("GAT-004", f"{path}: {claim}"))
        elif names.setdefault(claim.name, path) != path and path in touched:
            findings.append(
                Finding("GAT-004", f"{path} and {names[claim.name]} are both {claim.name}")
            )
    mine = [path for path in change.paths if not path.startswith(RESULT_FILES)]
    everyone = [claim for claim in change.claims.values() if not isinstance(claim, str)]
    orphans = [
        path for path in mine
        if change.paths[path] != "D"
        and any(fnmatchcase(path, pattern) for pattern in gate_policy.guarded_paths)
        and not any(claim.scope.covers(path) for claim in everyone)
    ]  # fmt: skip
    if orphans:
        findings.append(Finding("GAT-002", f"in no claim's scope: {_named(orphans)}"))
    if touched:
        homes = [f"{home}/" for path in touched if (home := path.rpartition("/")[0])]
        outside = [
            path for path in mine
            if path not in touched
            and path not in orphans
            and not path.startswith(tuple(homes))
            and not any(claim.scope.covers(path) for claim in touched.values())
            and not any(fnmatchcase(path, pattern) for pattern in gate_policy.companion_paths)
        ]  # fmt: skip
        if outside:
            findings.append(Finding("GAT-003", f"outside the scope: {_named(outside)}"))
        rules = [path for path in (POLICY_FILE, SIGNERS_FILE) if path in change.paths]
        if rules:
            findings.append(Finding("GAT-009", f"changed here: {_named(rules)}"))
    told = ", ".join(sorted(claim.name for claim in touched.values()))
    note = f"touches {told}" if told else "touches no optimization, so nothing is demanded"
    return Decision("change", f"{change.base[:12]}..{change.head[:12]}", tuple(findings), (note,))


def _fresh(change: Change, decision: Decision) -> Decision:
    """Step 5: a verified file is about head's claim and head's in-scope files."""
    found = decision.verification
    if found is None:
        return decision
    matching = [claim for claim in change.claims.values()
                if not isinstance(claim, str) and claim.name == found.claim.name]
    added: list[Finding] = []
    if not matching:
        added.append(Finding("GAT-006", f"it is about {found.claim.name}, which is not here"))
    else:
        claim = matching[0]
        if claim.digest() != found.claim.digest():
            added.append(Finding("GAT-007", f"claim {found.claim.digest()[:12]} was measured, "
                                            f"head has {claim.digest()[:12]}"))
        source = found.provenance.source
        if source.get("scope_sha256") != change.scope_sha256(claim):
            added.append(_stale(change, claim, str(source.get("commit"))))
    return replace(decision, findings=(*decision.findings, *added))


def _stale(change: Change, claim: Claim, commit: str) -> Finding:
    """Other in-scope files: an older state of this change's, or another change's."""
    if not change.repository.is_ancestor(commit, change.head):
        return Finding(
            "GAT-006",
            f"measured on commit {commit[:12]}, which is not in this change's history, with other "
            "in-scope files",
        )
    since = [path for path in change.repository.changed(commit, change.head)
             if not path.startswith(RESULT_FILES) and claim.scope.covers(path)]
    return Finding("GAT-005", f"since it was measured on {commit[:12]} changed: {_named(since)}")


def _coverage(
    change: Change, path: str, claim: Claim, brought: dict[str, Decision]
) -> Decision:
    """Step 6: one touched optimization, and whether the protected branch moved under it."""
    findings = list(_moved(change, claim))
    notes: list[str] = []
    mine = [file for file in brought.values()
            if file.verification is not None and file.verification.claim.name == claim.name]
    if mine:
        tested = sorted({f.verification.run.target for f in mine if f.verification is not None})
        notes.append(f"evidence brought for {', '.join(tested)}")
    elif any(change.files.get(name) for name in brought) and not mine and _all_refused(brought):
        notes.append("the result files it brings cannot be read; see below")
    else:
        there = _there_before(change, claim, brought)
        if there is None:
            findings.append(Finding("GAT-001", f"no result file for {claim.name}"))
        else:
            findings += there.findings
            notes.append(f"evidence there before: {there.name}")
    return Decision("optimization", path, tuple(findings), tuple(notes))


def _all_refused(brought: dict[str, Decision]) -> bool:
    return bool(brought) and all(file.refused is not None for file in brought.values())


def _moved(change: Change, claim: Claim) -> Iterator[Finding]:
    """In-scope files that the protected branch has otherwise than head, since head left it."""
    if change.fork == change.base:
        return
    there = change.repository.files(change.base)
    moved = [
        path for path in change.repository.changed(change.fork, change.base)
        if not path.startswith(RESULT_FILES) and claim.scope.covers(path)
        and (there[path].oid if path in there else None) != change.files.get(path)
    ]  # fmt: skip
    if moved:
        yield Finding("GAT-008", f"changed on the protected branch: {_named(moved)}")


def _there_before(change: Change, claim: Claim, brought: dict[str, Decision]) -> Decision | None:
    """The best result file of an earlier change, by its name: a fresh one, else a stale one."""
    names = sorted(
        (path for path in change.files
         if path.startswith(RESULT_FILES) and path not in brought
         and fnmatchcase(path.rpartition("/")[2], f"{claim.name}-*{SUFFIX}")),
        reverse=True,
    )[:MAX_OLD_FILES]  # fmt: skip
    wanted = change.scope_sha256(claim)
    fresh = [path for path in names if _claims_scope(change.fetch(path), wanted)]
    best: Decision | None = None
    for path in fresh or names[:1]:
        found = _fresh(change, evidence.judge(change.fetch(path), path, change.reader))
        if found.verification is None or found.verification.claim.name != claim.name:
            continue
        if not found.status:
            return found
        best = best or found
    return best


def _claims_scope(path: Path, scope_sha256: str) -> bool:
    """Whether a file says that it was measured from these in-scope files."""
    try:
        with open_bundle(path) as bundle:
            return bundle.provenance.source.get("scope_sha256") == scope_sha256
    except VerificationFailed:
        return False


def _waive(change: Change, decisions: list[Decision]) -> list[Decision]:
    """Step 7."""
    names = [path for path in change.files
             if path.startswith(RESULT_FILES) and path.endswith(waiver.SUFFIX)]
    open_codes = {f.code for decision in decisions for f in decision.findings}
    authors = {signer.public_key: signer.principal for decision in decisions
               if decision.verification for signer in decision.verification.signers}
    allowed = () if change.reader.allowed_signers is None else identity.read(
        change.reader.allowed_signers
    )  # fmt: skip
    good: list[waiver.Waiver] = []
    bad: list[Finding] = []
    for path in names:
        new = path in change.paths or f"{path}.sig" in change.paths
        try:
            source = change.read(change.head, path, waiver.MAX_BYTES) or b""
            told = waiver.read(source)
            if told.rule not in open_codes and not new:
                continue
            waiver.check(
                told, source, change.read(change.head, f"{path}.sig", waiver.MAX_BYTES),
                change_sha256=change.sha256, policy=change.reader.policy, allowed=allowed,
                authors=authors, now=change.now,
            )  # fmt: skip
            good.append(told)
        except waiver.Refused as error:
            # A waiver of an earlier change is about other files; it stays, and does nothing.
            if new:
                bad.append(Finding(error.code, f"{path}: {error}"))
    waived = [waiver.apply(decision, good) for decision in decisions]
    first = replace(waived[0], findings=(*waived[0].findings, *bad))
    return [first, *waived[1:]]


def _named(paths: list[str]) -> str:
    shown = ", ".join(paths[:_MOST_NAMED])
    more = len(paths) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown or "nothing that git can name"
