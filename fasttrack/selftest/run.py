"""Runs the zoo and counts; keeps the result of an unchanged harness, zoo and machine.

Read by the command `self-test` and by the pipeline, which puts the result into every full run.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path

from fasttrack.bundle import atomic, provenance
from fasttrack.errors import UsageError
from fasttrack.schema import PlantResult, SelfTest
from fasttrack.schema._json import canonical_bytes, digest
from fasttrack.selftest import catalogue, mutants
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

    Without `only`, also spoil a good result file a few hundred times.

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
    spoiler = mutants.find(folder) if only is None else None
    return SelfTest(
        harness_sha256=provenance.harness_digest(),
        catalogue_sha256=catalogue.digest(folder),
        plants=tuple(_judged(folder, plants, tell)),
        mutants=mutants.run(spoiler) if spoiler else None,
    )


def kept(cache: Path) -> SelfTest:
    """The whole self-test, made once per harness, zoo, Python and machine; kept below `cache`.

    Only a flawless one is kept: whatever went wrong deserves another look.
    """
    folder = catalogue.find(None)
    key = digest(
        {
            "harness": provenance.harness_digest(),
            "catalogue": catalogue.digest(folder),
            "python": platform.python_version(),
            "machine": platform.node(),
            "torch": _version("torch"),
        }
    )
    path = cache / f"{key[:16]}.json"
    try:
        return SelfTest.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        # Absent, or cut short by a full disk: made anew.
        found = run()
        if not found.flawless:
            return found
        cache.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(path, canonical_bytes(found.json_value()))
        return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


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
