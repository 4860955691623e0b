"""Runs the zoo and counts; keeps the result of an unchanged harness, zoo and machine.

Read by the command `self-test` and by the pipeline, which puts the result into every full run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from fasttrack.bundle import provenance
from fasttrack.errors import UsageError
from fasttrack.schema import PlantResult, SelfTest
from fasttrack.selftest import catalogue
from fasttrack.selftest.catalogue import Plant
from fasttrack.selftest.plants import Zoo

Told = Callable[[Plant, PlantResult], None]


def run(
    zoo: Path | None = None,
    *,
    only: str | None = None,
    tell: Told = lambda plant, result: None,
    begin: Callable[[int], None] = lambda count: None,
) -> SelfTest:
    """Judge every plant whose name matches the glob `only`; `tell` hears of each.

    Raises `UsageError` ZOO-001 without a zoo, ZOO-002 for a malformed plant, USE-001 when no plant
    has such a name.
    """
    folder = catalogue.find(zoo)
    plants = [p for p in catalogue.load(folder) if only is None or _named(p, only)]
    if not plants:
        raise UsageError(
            "USE-001", f"no plant is named like {only!r}", next_step="fasttrack self-test --list"
        )
    begin(len(plants))
    return SelfTest(
        harness_sha256=provenance.harness_digest(),
        catalogue_sha256=catalogue.digest(folder),
        plants=tuple(_judged(folder, plants, tell)),
    )


def _named(plant: Plant, pattern: str) -> bool:
    return fnmatchcase(plant.name, pattern) or fnmatchcase(plant.id, pattern)


def _judged(folder: Path, plants: Iterable[Plant], tell: Told) -> Iterable[PlantResult]:
    scratch = tempfile.TemporaryDirectory(prefix="fasttrack-zoo-")
    with scratch as path, Zoo(folder, Path(path)) as zoo:
        for plant in plants:
            result = _result(zoo, plant)
            tell(plant, result)
            yield result


def _result(zoo: Zoo, plant: Plant) -> PlantResult:
    lacking = catalogue.unmet(plant)
    problem = lacking or zoo.problem(plant)
    return PlantResult(
        group=plant.group,
        name=plant.name,
        row=plant.row,
        code=plant.expect.code,
        state="not run" if lacking else "wrong" if problem else "right",
        detail=problem[:600],
    )
