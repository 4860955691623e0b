"""A fastest call below what its bytes need."""

from types import ModuleType
from typing import Any

BYTES, PEAK_BYTES_PER_S, FASTEST_S = 2e9, 4.8e12, 100e-6


def records(zoo: ModuleType) -> list[Any]:
    """Right numbers, in too little time."""
    made = []
    for record in zoo.honest_run():
        if record.kind == "conduct":
            told = zoo.conduct(floor=FASTEST_S)
            checks = [
                check.model_copy(update={"bound": BYTES / PEAK_BYTES_PER_S})
                if check.name == "floor"
                else check
                for check in told.checks
            ]
            record = told.model_copy(update={"checks": tuple(checks)})
        made.append(record)
    return made
