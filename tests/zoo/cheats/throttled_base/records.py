"""Clocks of base held down by a power cap."""

from types import ModuleType
from typing import Any

from fasttrack.schema import MonitorRecord

SEEN = {"foreign_cpu_share": 0.01, "gpus": 1, "gpu_throttle_bits": 4}


def records(zoo: ModuleType) -> list[Any]:
    """The watch's word on base."""
    made = []
    for record in zoo.honest_run():
        if isinstance(record, MonitorRecord) and record.session.endswith("base"):
            record = record.model_copy(update={"values": SEEN})
        made.append(record)
    return made
