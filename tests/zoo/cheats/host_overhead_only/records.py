"""Only the launches are timed."""

from types import ModuleType
from typing import Any

LAUNCH_S = 30e-6


def records(zoo: ModuleType) -> list[Any]:
    """Candidate steps of 30 microseconds each, in calls that take as long as stock's."""
    made = []
    for record in zoo.honest_run(perf=zoo.perf(1.0)):
        if record.kind == "sample" and record.arm == "candidate":
            launched = [step.model_copy(update={"duration_s": LAUNCH_S}) for step in record.steps]
            record = record.model_copy(update={"steps": tuple(launched)})
        made.append(record)
    return made
