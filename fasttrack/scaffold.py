"""A new optimization from the template: complete, and valid as a no-op."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fasttrack.errors import UsageError

NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


def create(name: str, parent: Path) -> tuple[Path, ...]:
    """Write ``parent/name`` and return its files.

    Raises `UsageError` USE-001 for a name that cannot be a package, USE-002 when the folder exists
    and is not empty.
    """
    package = name.replace("-", "_")
    if not NAME.fullmatch(name) or keyword.iskeyword(package):
        raise UsageError(
            "USE-001",
            f"{name!r} cannot name a package",
            next_step="use lower-case letters, digits, '-' and '_', beginning with a letter",
        )
    folder = parent / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError("USE-002", f"{folder} is there already", next_step="choose another name")
    written: list[Path] = []
    _copy(files("fasttrack") / "templates" / "optimization", folder, name, package, written)
    return tuple(written)


def _copy(source: Traversable, folder: Path, name: str, package: str, written: list[Path]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir(), key=lambda item: item.name):
        if entry.is_dir():
            if entry.name != "__pycache__":
                inner = package if entry.name == "package" else entry.name
                _copy(entry, folder / inner, name, package, written)
            continue
        text = entry.read_text(encoding="utf-8")
        path = folder / entry.name
        path.write_text(
            text.replace("@NAME@", name).replace("@PACKAGE@", package), encoding="utf-8"
        )
        written.append(path)
