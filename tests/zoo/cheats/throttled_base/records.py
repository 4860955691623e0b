"""Clocks of base held down by a power cap."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """The watch's word on base."""
    return zoo.watched({"foreign_cpu_share": 0.01, "gpus": 1, "gpu_throttle_bits": 4}, "base")
