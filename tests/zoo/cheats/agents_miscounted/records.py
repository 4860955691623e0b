"""Answers whose usage is not what was computed."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """The candidate's counters are those of fewer tokens."""
    made = []
    for record in zoo.agent_run():
        if record.kind == "agent" and record.arm == "candidate":
            counters = {**record.counters, "generated_tokens": 90}
            record = record.model_copy(update={"counters": counters})
        made.append(record)
    return made
