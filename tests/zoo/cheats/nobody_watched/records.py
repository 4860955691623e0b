"""Nothing is known of the machine."""

from types import ModuleType
from typing import Any

from fasttrack.schema import MonitorRecord

SEEN = {"load_1min": 1.0}


def records(zoo: ModuleType) -> list[Any]:
    """Every session without its watch."""
    made = []
    for record in zoo.honest_run():
        if isinstance(record, MonitorRecord):
            record = record.model_copy(update={"values": SEEN})
        made.append(record)
    return made
