"""A fastest call below what its operations need."""

from types import ModuleType
from typing import Any

FLOPS, PEAK_FLOPS_PER_S, FASTEST_S = 550e9, 989e12, 10e-6


def records(zoo: ModuleType) -> list[Any]:
    """Right numbers, in no time."""
    made: list[Any] = zoo.too_fast(FASTEST_S, FLOPS / PEAK_FLOPS_PER_S)
    return made
