"""Gathers the kernel cases of all plants: what the children of the self-test import.

`cases` serves plants that may share a process; ``only_GROUP_NAME`` serves one that has its own.
Each `case.py` is loaded by path, under a name of its own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def load(folder: Path) -> list[Any]:
    """The cases of one plant."""
    spec = spec_from_file_location(f"zoo_case_{folder.parent.name}_{folder.name}",
                                   folder / "case.py")  # fmt: skip
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    made: list[Any] = module.cases()
    return made


def cases() -> list[Any]:
    """Of every plant that is not to be alone."""
    found = []
    for path in sorted(HERE.glob("*/*/case.py")):
        told = tomllib.loads((path.parent / "zoo.toml").read_text())
        if not told.get("alone") and told.get("needs", "cpu") != "cuda":
            found += load(path.parent)
    return found


def __getattr__(name: str) -> Callable[[], list[Any]]:
    for group in ("cheats", "honest"):
        prefix = f"only_{group}_"
        if name.startswith(prefix):
            return lambda: load(HERE / group / name.removeprefix(prefix))
    raise AttributeError(name)
