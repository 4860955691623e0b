"""Two commits and what lies between them: changed files, claims, result files.

Owns reading, from git's objects alone: nothing is checked out and nothing of the change is run.
What follows from it is `change`'s. Read by `change` and `coverage`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from fasttrack import claim as claims
from fasttrack.bundle import layout
from fasttrack.bundle.archive import SUFFIX
from fasttrack.bundle.git import RESULT_FILES, Blob, GitError, Repository, scope_digest
from fasttrack.errors import UsageError
from fasttrack.schema import Claim
from fasttrack.schema._json import digest

NOT_CLAIMS = frozenset({"templates", RESULT_FILES.rstrip("/")})
"""Folders whose claim.toml are no claims of the repository: texts to copy, and copies."""
_MOST_NAMED = 8


@dataclass
class Diff:
    """From `base`, the tip of the protected branch, to `head`; both are commits."""

    repository: Repository
    base: str
    head: str
    scratch: Path
    """An empty folder for copies of result files."""

    @cached_property
    def fork(self) -> str:
        """The commit where head left base."""
        return self.repository.merge_base(self.base, self.head)

    @cached_property
    def paths(self) -> dict[str, str]:
        """Changed path to A, D, M or T."""
        return self.repository.changed(self.fork, self.head)

    @cached_property
    def code(self) -> dict[str, str]:
        """Changed path to letter, without result files and what lies beside them."""
        return {p: letter for p, letter in self.paths.items() if not p.startswith(RESULT_FILES)}

    @property
    def files(self) -> Mapping[str, Blob]:
        """Every file of head."""
        return self.repository.files(self.head)

    @cached_property
    def sha256(self) -> str:
        """Digest of everything changed but result files: what a waiver is bound to."""
        _, kept = scope_digest(self.repository, self.head, self.code.__contains__)
        gone = sorted(path for path, letter in self.code.items() if letter == "D")
        return digest([kept, [path.encode("utf-8", "backslashreplace").decode() for path in gone]])

    def claims(self, commit: str) -> Iterator[tuple[str, Claim | str]]:
        """Each claim.toml of a commit: its path, and the claim or why it cannot be read."""
        for path in self.repository.files(commit):
            *folders, name = PurePosixPath(path).parts
            if name != claims.FILE or NOT_CLAIMS & set(folders):
                continue
            try:
                source = self.read(commit, path, claims.MAX_BYTES) or b""
                yield path, claims.parse_source(source, path)
            except UsageError as error:
                yield path, error.cause
            except GitError as error:
                yield path, f"{path}: {error}"

    @cached_property
    def head_claims(self) -> dict[str, Claim]:
        """The claims of head that can be read, by path."""
        return {path: claim for path, claim in self.claims(self.head) if isinstance(claim, Claim)}

    def scope_sha256(self, claim: Claim) -> str:
        """Digest of head's files in a claim's scope, as provenance holds it."""
        return scope_digest(self.repository, self.head, claim.scope.covers)[1]

    def read(self, commit: str, path: str, limit: int) -> bytes | None:
        """Content of a file of a commit, or None where there is none; raises `GitError`."""
        blob = self.repository.files(commit).get(path)
        return None if blob is None else self.repository.read(blob, limit)

    def fetch(self, path: str) -> Path:
        """A copy of a result file of head; a name of the repository never becomes a name here."""
        copy = self.scratch / f"{hashlib.sha256(path.encode(errors='replace')).hexdigest()}{SUFFIX}"
        if not copy.exists():
            for _, size, pieces in self.repository.contents([self.files[path].oid]):
                if size > layout.MAX_TOTAL_BYTES:
                    raise GitError(f"{path}: {size} bytes are too many")
                with copy.open("wb") as out:
                    out.writelines(pieces)
        return copy


def named(paths: list[str]) -> str:
    """The first few paths, and how many more there are."""
    more = len(paths) - _MOST_NAMED
    return ", ".join(paths[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
