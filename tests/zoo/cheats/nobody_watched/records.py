"""Nothing is known of the machine."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """Every session without its watch."""
    return zoo.watched({"load_1min": 1.0})
