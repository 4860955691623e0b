"""Files of a repository as git stores them, at any commit, without checking anything out.

Owns the calls of git and `scope_digest`, which ties evidence to the files it is about. The
repository may come from a stranger: nothing of it is executed, no filter, hook, pager or external
diff runs, and names may hold any byte. Read by `provenance` and by the gate.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fasttrack.schema._json import canonical_bytes

TIMEOUT_S = 60
RESULT_FILES = "submissions/"
"""Never part of a scope: each run adds a file here."""
OWN_FOLDERS = frozenset({"runs", ".fasttrack"})
_CHUNK = 1 << 20
_SUBMODULE = "160000"


class GitError(ValueError):
    """Git is absent, or refused; the message is its first line."""


@dataclass(frozen=True)
class Blob:
    """A file of a tree: git's mode (100644, 100755, 120000 link, 160000 submodule) and object."""

    mode: str
    oid: str


class Repository:
    """A repository, read through its objects. Every method raises `GitError`."""

    def __init__(self, folder: Path) -> None:
        """Use any folder of it; a bare one will do."""
        self._folder = folder
        self._files: dict[str, dict[str, Blob]] = {}
        self._git("rev-parse", "--git-dir")

    def commit(self, ref: str) -> str:
        """Full name of the commit a reference stands for."""
        if ref.startswith("-"):
            raise GitError(f"not a reference: {ref!r}")
        return self._text("rev-parse", "--verify", "-q", f"{ref}^{{commit}}", what=f"no {ref!r}")

    def tree(self, commit: str) -> str:
        """Full name of a commit's tree."""
        return self._text("rev-parse", "--verify", "-q", f"{commit}^{{tree}}")

    def merge_base(self, one: str, other: str) -> str:
        """The commit from which two commits parted."""
        return self._text("merge-base", one, other, what="the two commits share no history")

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether a commit lies in another's history; no for one that is not here at all."""
        try:
            self._git("merge-base", "--is-ancestor", old, new)
        except GitError:
            return False
        return True

    def history(self, commit: str, most: int) -> list[str]:
        """A commit and up to `most` - 1 before it, last first."""
        return self._git("rev-list", f"-{most}", commit).decode("ascii").split()

    def changed(self, old: str, new: str) -> dict[str, str]:
        """Path to letter (A added, D deleted, M changed, T other kind) between two commits."""
        raw = self._git("diff-tree", "-r", "-z", "--no-renames", "--name-status", old, new)
        fields = raw.split(b"\0")[:-1]
        return {
            os.fsdecode(path): letter.decode("ascii")
            for letter, path in zip(fields[::2], fields[1::2], strict=True)
        }

    def files(self, commit: str) -> dict[str, Blob]:
        """All files of a commit, by path from the top of the repository; listed once."""
        if commit in self._files:
            return self._files[commit]
        found = self._files[commit] = {}
        for entry in self._git("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
            told, _, path = entry.partition(b"\t")
            mode, _, oid = told.decode("ascii").split(" ")
            found[os.fsdecode(path)] = Blob(mode, oid)
        return found

    def status(self) -> int:
        """Number of files in the working tree that differ from HEAD.

        What runs leave where they are started does not count: result files, and untracked folders
        of working state.
        """
        raw = self._git(
            "status", "--porcelain=v1", "--no-renames", "--untracked-files=normal", "-z",
            "--", ":/", f":(exclude,top,glob){RESULT_FILES}**",
        )  # fmt: skip
        entries = [os.fsdecode(entry) for entry in raw.split(b"\0")[:-1]]
        own = [
            entry
            for entry in entries
            if entry.startswith("?? ") and entry[3:].rstrip("/").rpartition("/")[2] in OWN_FOLDERS
        ]
        return len(entries) - len(own)

    def edited(self, commit: str) -> dict[str, str]:
        """Path to letter (as `changed`; A for untracked) of what differs from a commit now.

        What the repository ignores is left out, and what runs leave where they are started; the
        working tree, not the index, counts.
        """
        raw = self._git(
            "diff", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--name-status",
            commit, "--", ":/",
        )  # fmt: skip
        fields = raw.split(b"\0")[:-1]
        found = {
            os.fsdecode(path): letter.decode("ascii")[0]
            for letter, path in zip(fields[::2], fields[1::2], strict=True)
        }
        new = self._git(
            "ls-files", "-z", "--others", "--exclude-standard", "--full-name", "--", ":/"
        )
        untracked = [os.fsdecode(path) for path in new.split(b"\0")[:-1]]
        left = OWN_FOLDERS | {RESULT_FILES.rstrip("/")}
        return found | {path: "A" for path in untracked if not left & set(path.split("/")[:-1])}

    def top(self) -> Path:
        """The folder that paths are relative to; an error for a bare repository."""
        return Path(os.fsdecode(self._git("rev-parse", "--show-toplevel").rstrip(b"\n")))

    def read(self, blob: Blob, limit: int) -> bytes:
        """Content of one file of at most `limit` bytes."""
        for _, size, chunks in self.contents([blob.oid]):
            if size > limit:
                raise GitError(f"{size} bytes are more than {limit}")
            return b"".join(chunks)
        raise GitError("the object is missing")

    def contents(self, oids: Sequence[str]) -> Iterator[tuple[str, int, Iterator[bytes]]]:
        """(object, size, pieces of its content) of each file, in order, from one child process.

        What is left of one file's pieces is skipped when the next one is asked for.
        """
        with tempfile.TemporaryFile() as asked:
            asked.write("".join(f"{oid}\n" for oid in oids).encode("ascii"))
            asked.seek(0)
            with subprocess.Popen(
                [*self._command(), "cat-file", "--batch"],
                stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            ) as child:  # fmt: skip
                assert child.stdout is not None
                try:
                    for oid in oids:
                        kind, size = _header(child.stdout.readline(), oid)
                        if kind != "blob":
                            raise GitError(f"{oid} is a {kind}, not a file")
                        pieces = _pieces(child.stdout, size)
                        yield oid, size, pieces
                        for _ in pieces:
                            pass
                        child.stdout.read(1)
                finally:
                    child.kill()

    def _command(self) -> list[str]:
        return ["git", "-C", str(self._folder), "--no-optional-locks", "-c", "core.fsmonitor=false",
                "-c", "core.quotePath=false"]  # fmt: skip

    def _git(self, *arguments: str) -> bytes:
        try:
            return subprocess.run(
                [*self._command(), *arguments], capture_output=True, timeout=TIMEOUT_S, check=True
            ).stdout
        except subprocess.CalledProcessError as error:
            told = error.stderr.decode("utf-8", errors="replace").strip().splitlines()
            raise GitError(told[0][:300] if told else f"git {arguments[0]} failed") from error
        except (OSError, subprocess.SubprocessError) as error:
            raise GitError(f"git {arguments[0]}: {error}") from error

    def _text(self, *arguments: str, what: str = "") -> str:
        try:
            return self._git(*arguments).decode("ascii", errors="replace").strip()
        except GitError as error:
            raise GitError(what or str(error)) from error


def scope_digest(
    repository: Repository, commit: str, covers: Callable[[str], bool]
) -> tuple[int, str]:
    """Number of a commit's in-scope files, and one digest of their names, modes and contents.

    It stays equal when other files change, so evidence survives an unrelated rebase. Contents are
    hashed with SHA-256: git's own object names are no protection against somebody who seeks two
    files with one name.
    """
    chosen = {
        path: blob
        for path, blob in sorted(repository.files(commit).items())
        if not path.startswith(RESULT_FILES) and covers(path)
    }
    oids = list(dict.fromkeys(b.oid for b in chosen.values() if b.mode != _SUBMODULE))
    digests = {}
    for oid, _, pieces in repository.contents(oids):
        sha = hashlib.sha256()
        for piece in pieces:
            sha.update(piece)
        digests[oid] = sha.hexdigest()
    listed = [
        [_printable(path), blob.mode, digests.get(blob.oid, blob.oid)]
        for path, blob in chosen.items()
    ]
    return len(listed), hashlib.sha256(canonical_bytes(listed)).hexdigest()


def _printable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def _header(line: bytes, oid: str) -> tuple[str, int]:
    fields = line.decode("ascii", errors="replace").split()
    if len(fields) != 3:
        raise GitError(f"the object {oid} is missing: is this a shallow or partial clone?")
    return fields[1], int(fields[2])


def _pieces(stream: IO[bytes], size: int) -> Iterator[bytes]:
    while size:
        piece = stream.read(min(size, _CHUNK))
        if not piece:
            raise GitError("git stopped early")
        size -= len(piece)
        yield piece
