"""The honest run with agent traffic."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """Two blocks of four sessions."""
    return list(zoo.agent_run())
