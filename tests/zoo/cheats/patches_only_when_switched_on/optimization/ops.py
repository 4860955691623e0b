"""An honest op, so that there is something to read."""

from __future__ import annotations


def double(x: float) -> float:
    """Twice as much."""
    return 2 * x
