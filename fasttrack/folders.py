"""Leaf: which files of a folder count, and one digest for all of them."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OWN_FOLDERS = frozenset({"runs", "submissions", ".fasttrack"})
"""What a run writes where it is started: in the optimization's folder if that is `.`."""
IGNORED_PARTS = frozenset(
    {"__pycache__", ".git", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".cache", "build"}
)


def source_files(folder: Path) -> tuple[Path, ...]:
    """Files below a folder, sorted, without caches and installation leftovers."""
    return tuple(
        sorted(
            path
            for path in folder.rglob("*")
            if path.is_file()
            and path.relative_to(folder).parts[0] not in OWN_FOLDERS
            and not IGNORED_PARTS & set(path.relative_to(folder).parts)
            and not any(part.endswith(".egg-info") for part in path.relative_to(folder).parts)
        )
    )


def digest(folder: Path) -> str:
    """SHA-256 over one line ``path sha256 size`` per source file, sorted by path."""
    files = source_files(folder)
    # Threads: a checkpoint may have tens of gigabytes, and hashing leaves the interpreter alone.
    with ThreadPoolExecutor() as pool:
        lines = [
            f"{path.relative_to(folder).as_posix()} {content} {path.stat().st_size}\n"
            for path, content in zip(files, pool.map(_content, files), strict=True)
        ]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _content(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def repository_root(folder: Path) -> Path:
    """The nearest ancestor with a `.git`, else the folder's parent."""
    for parent in folder.parents:
        if (parent / ".git").exists():
            return parent
    return folder.parent
