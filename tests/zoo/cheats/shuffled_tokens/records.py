"""Prompts that load the experts as random tokens do, although their tokens look like text's."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """The prompts' choice of experts is as near to random tokens' as those are to others."""
    made: list[Any] = [*zoo.honest_run(), zoo.routing(sent=zoo.evenly(seed=3))]
    return made
