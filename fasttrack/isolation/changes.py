"""Which files a change consists of, and which of them lie outside its scope or are protected.

A change is what differs from the commit where it left the protected branch, untracked files
included. Where git cannot tell, or the difference is about something else, the optimization's whole
folder is the change.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fasttrack.bundle.git import RESULT_FILES, GitError, Repository
from fasttrack.errors import UsageError
from fasttrack.folders import repository_root, source_files
from fasttrack.isolation.components import MODELS, component_of
from fasttrack.schema import Check, Claim
from fasttrack.schema.record import IsolationFinding, IsolationRecord

DEFAULT_BRANCHES = ("refs/remotes/origin/HEAD", "origin/main", "origin/master", "main", "master")
ARCHITECTURES = ("ForCausalLM", "ForConditionalGeneration", "ForSequenceClassification")
"""How names of architectures end."""
MOST = 200
"""Findings of one subject that a record keeps."""
CI_BASE = "GITHUB_BASE_REF"
"""Set by GitHub for a pull request: the branch it goes to."""


@dataclass(frozen=True)
class Change:
    """The files of a change."""

    root: Path
    files: Mapping[str, str]
    """Path from the root -> A added, M modified, D deleted; `?` where git does not know."""
    folder: tuple[str, ...]
    """All files of the optimization's folder, changed or not."""
    origin: str
    """How the files were found, for the reader."""


def find(folder: Path, claim: Claim, base: str | None) -> Change:
    """The change an optimization's folder belongs to.

    `base` is a reference of the protected branch; None: as CI says, else the default branch.
    Raises `UsageError` USE-003 for a named base that git cannot find.
    """
    folder = folder.resolve()
    root = repository_root(folder)
    own = tuple(path.relative_to(root).as_posix() for path in source_files(folder))
    whole: dict[str, str] = dict.fromkeys(own, "?")
    try:
        repository = Repository(folder)
        root = repository.top().resolve()
        own = tuple(path.relative_to(root).as_posix() for path in source_files(folder))
        whole = dict.fromkeys(own, "?")
        start = _start(repository, base)
        if start is None:
            return Change(root, whole, own, "the whole folder: no protected branch to compare with")
        edited = {
            path: letter
            for path, letter in repository.edited(start[0]).items()
            if not path.startswith(RESULT_FILES)
        }
    except GitError as error:
        if base is not None:
            raise UsageError(
                "USE-003",
                f"{folder}: {error}",
                next_step="pass --base REF of the protected branch, and fetch it first",
            ) from error
        return Change(root, whole, own, f"the whole folder: {error}")
    commit, name = start
    if not any(map(claim.scope.covers, edited)):
        return Change(root, whole, own, f"the whole folder: as in {name}, {commit[:12]}")
    return Change(root, edited, own, f"differs from {commit[:12]}, where it left {name}")


def _start(repository: Repository, base: str | None) -> tuple[str, str] | None:
    """(commit, name) from which the change begins."""
    head = repository.commit("HEAD")
    if base is not None:
        return repository.merge_base(repository.commit(base), head), base
    told = os.environ.get(CI_BASE)
    for name in (f"origin/{told}", told) if told else DEFAULT_BRANCHES:
        try:
            return repository.merge_base(repository.commit(name), head), name
        except GitError:
            continue
    return None


def judge(change: Change, claim: Claim) -> list[IsolationRecord]:
    """The records of the subjects `scope` and `protected`."""
    outside = [path for path in sorted(change.files) if not claim.scope.covers(path)]
    more = f"; {len(outside)} files are outside the scope" if len(outside) > MOST else ""
    protected = _protected(change, claim)
    return [
        IsolationRecord(
            subject="scope",
            checks=(Check(name="files", relation="at_least", observed=len(change.files), bound=1),),
            message=change.origin + more,
            findings=tuple(
                IsolationFinding(
                    code="ISO-SCOPE", where=path, what="changed", why="no pattern of [scope].paths"
                )
                for path in outside[:MOST]
            ),
        ),
        IsolationRecord(
            subject="protected",
            checks=(Check(name="files", relation="at_least", observed=len(change.files), bound=1),),
            findings=tuple(protected[:MOST]),
        ),
    ]


def _protected(change: Change, claim: Claim) -> list[IsolationFinding]:
    found = []
    for path, letter in sorted(change.files.items()):
        component = component_of(path, is_new=letter == "A")
        if component is None:
            continue
        if component.name == MODELS and (path in change.folder or _defines(change, path, claim)):
            continue
        found.append(
            IsolationFinding(
                code="ISO-PROTECTED", where=path, what=component.name, why=component.why
            )
        )
    return found


def _defines(change: Change, path: str, claim: Claim) -> bool:
    """Whether a file, or its package below the folder of models, defines a claimed architecture."""
    pure = PurePosixPath(path)
    packages = ("models", "optimizations")
    depth = max((i for i, part in enumerate(pure.parts[:-2]) if part in packages), default=None)
    files = [change.root / path]
    if depth is not None:
        files = sorted(change.root.joinpath(*pure.parts[: depth + 2]).rglob("*.py"))
    classes = {name for file in files for name in _classes(file)}
    architectures = {name for name in classes if name.endswith(ARCHITECTURES)}
    mine = set(claim.scope.models)
    # With another model's class beside the claimed one, the file is that model's as well.
    return bool(classes & mine) and architectures <= mine


def _classes(file: Path) -> list[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def python_files(change: Change, claim: Claim) -> list[str]:
    """Files that the source scan reads: the folder's, the change's, and what the scope names."""
    own = {path for path in change.folder if not path.startswith(RESULT_FILES)}
    changed = {path for path, letter in change.files.items() if letter != "D"}
    mine = {path for path in changed if claim.scope.covers(path)}
    return sorted(own | mine)
