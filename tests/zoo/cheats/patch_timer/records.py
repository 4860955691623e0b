"""Steps that took longer than they say."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """Both arms are equal; the candidate's process counts a third of each second."""
    made = []
    for record in zoo.honest_run(perf=zoo.perf(1.0)):
        if record.kind == "sample" and record.arm == "candidate":
            short = [
                step.model_copy(
                    update={"duration_s": step.duration_s / 3, "start_s": step.start_s / 3}
                )
                for step in record.steps
            ]
            record = record.model_copy(update={"steps": tuple(short)})
        made.append(record)
    return made
