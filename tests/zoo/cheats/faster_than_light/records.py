"""A fastest call below what its operations need."""

from types import ModuleType
from typing import Any

FLOPS, PEAK_FLOPS_PER_S, FASTEST_S = 550e9, 989e12, 10e-6


def records(zoo: ModuleType) -> list[Any]:
    """Right numbers, in no time."""
    made = []
    for record in zoo.honest_run():
        if record.kind == "conduct":
            told = zoo.conduct(floor=FASTEST_S)
            checks = [
                check.model_copy(update={"bound": FLOPS / PEAK_FLOPS_PER_S})
                if check.name == "floor"
                else check
                for check in told.checks
            ]
            record = told.model_copy(update={"checks": tuple(checks)})
        made.append(record)
    return made
