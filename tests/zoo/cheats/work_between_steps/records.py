"""A candidate whose window took longer on the harness's clock than its steps tell."""

from types import ModuleType
from typing import Any

from fasttrack.schema import SampleRecord

HIDDEN = 1.6
"""Of the time of the steps in the window, what passed on the harness's clock."""


def records(zoo: ModuleType) -> list[Any]:
    """The call as a whole still looks plausible."""
    made = []
    for record in zoo.honest_run():
        if isinstance(record, SampleRecord) and record.arm == "candidate":
            (first, began), (last, _) = record.marks
            took = HIDDEN * sum(step.duration_s for step in record.steps[first:last])
            marks = [(first, began), (last, began + took)]
            record = record.model_copy(update={"marks": marks, "call_s": took * 1.2})
        made.append(record)
    return made
