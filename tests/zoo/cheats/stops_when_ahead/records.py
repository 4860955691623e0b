"""Pairs up to the one after which a careless interval says that there is a gain."""

import math
from types import ModuleType
from typing import Any

GAINS = (0.0, 0.02, -0.005, 0.025, 0.03, 0.03, 0.03)
"""ln(base / candidate) of pair after pair: the fourth is where the rule looks first."""


def records(zoo: ModuleType) -> list[Any]:
    """Four blocks, of which the last holds one pair."""
    made = []
    for record in zoo.perf(1.0, blocks=4, boot_noise=0.0, step_noise=0.0):
        block, position = getattr(record, "block", None), getattr(record, "position", 0)
        if block is not None:
            pair = 2 * block + (position > 1)
            if pair >= len(GAINS):
                continue
            if record.arm == "candidate":
                pace = math.exp(-GAINS[pair])
                steps = [
                    step.model_copy(update={"duration_s": pace * step.duration_s})
                    for step in record.steps
                ]
                record = record.model_copy(update={"steps": tuple(steps)})
        made.append(record)
    run: list[Any] = zoo.honest_run(perf=made)
    return run
