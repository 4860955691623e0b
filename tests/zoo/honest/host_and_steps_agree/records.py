"""An honest run of an engine with a real clock."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """As it comes."""
    made: list[Any] = zoo.honest_run()
    return made
