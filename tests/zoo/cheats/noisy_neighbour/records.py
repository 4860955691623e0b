"""A foreign process in every session of base."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """The watch's word on base."""
    return zoo.watched({"foreign_cpu_share": 0.5}, "base")
