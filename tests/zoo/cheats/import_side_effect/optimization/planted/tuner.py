"""Busy from the first import on, switched on or not."""

from __future__ import annotations

import threading


def start() -> None:
    """Tune in the background."""
    threading.Thread(target=tune, daemon=True).start()


def tune() -> None:
    """Nothing useful."""
