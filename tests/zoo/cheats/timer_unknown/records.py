"""Numbers without a clock."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """An honest run of an engine that keeps its timer to itself."""
    made = []
    for record in zoo.honest_run():
        if record.kind == "session":
            told = {key: value for key, value in record.fingerprint.items() if key != "timer"}
            record = record.model_copy(update={"fingerprint": told})
        made.append(record)
    return made
