"""Stock in eager mode on a GPU, without a word about it."""

from types import ModuleType
from typing import Any

from fasttrack.schema import SessionRecord


def records(zoo: ModuleType) -> list[Any]:
    """Every session says so; the arms are alike."""
    told = {"engine": "vllm", "timer": "perf_counter", "device": "cuda", "enforce_eager": True}
    made: list[Any] = zoo.changed(zoo.honest_run(), SessionRecord, fingerprint=told)
    return made
