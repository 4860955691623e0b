"""A loaded machine, by itself."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """The same in every session."""
    return zoo.watched({"load_1min": 60.0, "foreign_cpu_share": 0.02, "steal_share": 0.0})
