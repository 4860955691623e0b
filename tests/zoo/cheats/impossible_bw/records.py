"""A fastest call below what its bytes need."""

from types import ModuleType
from typing import Any

BYTES, PEAK_BYTES_PER_S, FASTEST_S = 2e9, 4.8e12, 100e-6


def records(zoo: ModuleType) -> list[Any]:
    """Right numbers, in too little time."""
    made: list[Any] = zoo.too_fast(FASTEST_S, BYTES / PEAK_BYTES_PER_S)
    return made
