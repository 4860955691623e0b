"""A replay against a server that somebody has warmed."""

from types import ModuleType
from typing import Any


def warm(turn: Any) -> dict[str, Any]:
    """Half of every prompt is cached, the first one's too."""
    return {"cached_tokens": turn.input_tokens // 2}


def records(zoo: ModuleType) -> list[Any]:
    """The candidate's cache is warm, base's is not."""
    return list(zoo.retold(lambda replay: replay.arm == "candidate", warm))
