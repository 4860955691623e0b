"""A process of others on the device."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """The watch's word on base."""
    return zoo.watched({"foreign_cpu_share": 0.01, "gpus": 1, "gpu_foreign_processes": 1}, "base")
