"""Prompts that differ between the arms."""

from types import ModuleType
from typing import Any

from fasttrack.schema import SampleRecord


def records(zoo: ModuleType) -> list[Any]:
    """The candidate's prompts have another digest."""
    made: list[Any] = zoo.changed(
        zoo.honest_run(), SampleRecord, lambda r: r.arm == "candidate", prompts_sha256="9" * 64
    )
    return made
