"""Makes the engine take another attention back end, for every model."""

from __future__ import annotations

from os import environ


def prepare() -> None:
    """Called before the engine starts."""
    environ.setdefault("VLLM_ATTENTION_BACKEND", "MINE")
