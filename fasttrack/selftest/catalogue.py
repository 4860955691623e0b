"""The zoo on disk: planted cheats that must be refused, honest work that must pass.

A plant is a folder ``cheats/NAME`` or ``honest/NAME`` with a `zoo.toml` (`Plant`) and, by its kind:

- ``case``: `case.py`, whose `cases()` returns one kernel case named like the folder; it meets the
  kernel referee and its children.
- ``stage``: a stage run on the fake engine, with a `[fake]` table for it, on the folder's own
  `optimization/` if it has one.
- ``records``: `records.py`, whose `records(zoo)` returns a doctored run made with the builders of
  `zoo_records`; for what no CPU can do, such as the clocks of a GPU.
- ``probe``: `probe.py`, whose `probe(scratch)` runs a detector of another room and returns
  (code, detail) of all it found.

Owns the form and where the zoo is found; runs nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

import fasttrack
from fasttrack import folders
from fasttrack.errors import UsageError
from fasttrack.schema._json import digest as json_digest
from fasttrack.schema.claim import Frozen
from fasttrack.schema.record import Stage

SHIPPED = "_zoo"
"""Folder of the zoo inside an installed package."""
Group = Literal["cheats", "honest"]
GROUPS: tuple[Group, Group] = ("cheats", "honest")


class Expectation(Frozen):
    """How a plant must be judged."""

    code: str = ""
    """Verdict reason or error code. A cheat needs one; an honest plant may name a reason too."""
    cell: str = "*"
    """Glob over the cell of that verdict."""
    says: str = ""
    """Text within its detail: that it was caught for what it is."""
    also: tuple[str, ...] = ()
    """Codes that follow from the same fault; any other one is a wrong reason."""


class Plant(Frozen):
    """One `zoo.toml`, with the name and group its folder gives it."""

    name: str
    group: Group
    title: str
    how: str
    """What the planted code does, in a sentence."""
    row: int | None = None
    """Number in the catalogue of cheats, where it stems from there."""
    kind: Literal["case", "stage", "records", "probe"]
    needs: Literal["cpu", "torch", "cuda"] = "cpu"
    expect: Expectation = Expectation()
    stage: Stage = "kernels"
    """The stage to run, of kind `stage`."""
    alone: bool = False
    """A case that spoils its process for others gets children of its own."""
    seeds: int = Field(default=4, ge=1)
    repeats: int = Field(default=3, ge=0)
    timeout_s: float = Field(default=60.0, gt=0)
    fake: Mapping[str, Any] = Field(default_factory=dict)
    """Options of the fake engine."""
    claim: Mapping[str, Any] = Field(default_factory=dict)
    """Keys of the claim that differ, table by table; its one target is ``zoo``."""

    @property
    def id(self) -> str:
        """``cheats/pointer_memo``."""
        return f"{self.group}/{self.name}"


def default_folder() -> Path | None:
    """The zoo of this installation: inside a wheel, or beside the package in a checkout."""
    package = Path(fasttrack.__file__).parent
    for folder in (package / SHIPPED, package.parent / "tests" / "zoo"):
        if (folder / "cheats").is_dir():
            return folder
    return None


def find(folder: Path | None) -> Path:
    """The zoo to use; raises `UsageError` ZOO-001 when there is none."""
    found = folder or default_folder()
    if found is None or not any((found / group).is_dir() for group in GROUPS):
        raise UsageError(
            "ZOO-001",
            f"there is no zoo in {found}" if found else "this installation has no zoo",
            next_step="pass --zoo FOLDER: the folder that holds cheats/ and honest/",
        )
    return found


def load(zoo: Path) -> tuple[Plant, ...]:
    """Every plant, cheats first, by name. Raises `UsageError` ZOO-002 for a malformed one."""
    return tuple(
        _plant(path.parent, group)
        for group in GROUPS
        for path in sorted((zoo / group).glob("*/zoo.toml"))
    )


def _plant(folder: Path, group: Group) -> Plant:
    try:
        told = tomllib.loads((folder / "zoo.toml").read_text(encoding="utf-8"))
        plant = Plant.model_validate({**told, "name": folder.name, "group": group})
    except (OSError, ValueError, ValidationError) as error:
        cause = f"{group}/{folder.name}/zoo.toml: {' '.join(str(error).split())[:400]}"
        raise UsageError("ZOO-002", cause, cell=folder.name) from error
    if group == "cheats" and not plant.expect.code:
        cause = f"{plant.id}/zoo.toml: a cheat names the code that must refuse it"
        raise UsageError("ZOO-002", cause, cell=folder.name)
    return plant


def keys(zoo: Path) -> list[tuple[Group, str, int | None, str]]:
    """(group, name, row, code) of every plant, in order: what a result of this zoo lists."""
    return [(p.group, p.name, p.row, p.expect.code) for p in load(zoo)]


def digest(zoo: Path) -> str:
    """SHA-256 over names and content of the zoo's files, in a checkout as in a wheel."""
    listed = [
        [path.relative_to(zoo).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in folders.source_files(zoo)
        if not path.name.startswith("test_")
        and path.name != "conftest.py"
        and path.relative_to(zoo).parts[0] != "reject"
    ]
    return json_digest(sorted(listed))


def unmet(plant: Plant) -> str:
    """What this machine lacks for a plant; empty when it can run."""
    wants_torch = plant.needs in ("torch", "cuda") or plant.kind == "case"
    if wants_torch and importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if plant.needs == "cuda" and shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU here"
    return ""
