"""A replay without its longest request."""

from types import ModuleType
from typing import Any


def refused(turn: Any) -> dict[str, Any]:
    """What a server says to a prompt that it does not want."""
    told = {"error": "HTTP 400: maximum context length", "output_tokens": None, "arrivals": ()}
    return told if (turn.trace, turn.turn) == ("mend", 2) else {}


def records(zoo: ModuleType) -> list[Any]:
    """The candidate refuses, base does not."""
    return list(zoo.retold(lambda replay: replay.arm == "candidate", refused))
