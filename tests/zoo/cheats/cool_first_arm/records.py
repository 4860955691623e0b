"""No speed-up at all, on a machine that gets slower and slower."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """Both arms are equal; each session is 6 % slower than the one before."""
    return zoo.honest_run(perf=zoo.perf(1.0, drift=0.06))
