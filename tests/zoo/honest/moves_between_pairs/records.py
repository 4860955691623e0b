"""A first pair on one machine, the rest on another."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """Names of machines; times are those of an honest sweep."""
    return list(zoo.moved(("perf-b0-2", "perf-b0-3", "perf-b1")))
