"""A loaded machine, by itself."""

from types import ModuleType
from typing import Any

from fasttrack.schema import MonitorRecord

SEEN = {"load_1min": 60.0, "foreign_cpu_share": 0.02, "steal_share": 0.0}


def records(zoo: ModuleType) -> list[Any]:
    """The same in every session."""
    made = []
    for record in zoo.honest_run():
        if isinstance(record, MonitorRecord):
            record = record.model_copy(update={"values": SEEN})
        made.append(record)
    return made
