"""Lazy registry of engines.

A module of this folder with an `ENGINE` is an engine; outside packages add theirs through the
entry-point group `fasttrack.engines`. Nothing heavy is imported to find them.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.metadata import entry_points

from fasttrack.engine.base import Engine
from fasttrack.errors import EnvironmentUnmet


def registry() -> dict[str, Engine]:
    """All engines of this installation, by name."""
    found = [
        getattr(import_module(f"{__name__}.{module.name}"), "ENGINE", None)
        for module in pkgutil.iter_modules(__path__)
        if not module.name.startswith("_")
    ]
    found += [point.load() for point in entry_points(group="fasttrack.engines")]
    return {engine.name: engine for engine in found if isinstance(engine, Engine)}


def get(name: str) -> Engine:
    """The engine of that name; raises `EnvironmentUnmet` ENV-002."""
    engines = registry()
    if name not in engines:
        raise EnvironmentUnmet(
            "ENV-002", f"no engine {name!r} here; there is {', '.join(sorted(engines))}"
        )
    return engines[name]
