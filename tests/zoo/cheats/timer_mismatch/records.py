"""Device events in one arm, the host's clock in the other."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """Faster, by the difference of two timers."""
    made = []
    for record in zoo.honest_run():
        if record.kind == "session" and record.arm == "candidate":
            told = {**record.fingerprint, "timer": "device events"}
            record = record.model_copy(update={"fingerprint": told})
        made.append(record)
    return made
