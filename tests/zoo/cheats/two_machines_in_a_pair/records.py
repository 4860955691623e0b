"""Both candidates of the first block on another machine than their base."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """Names of machines; times are those of an honest sweep."""
    return list(zoo.moved(("perf-b0-1", "perf-b0-2")))
