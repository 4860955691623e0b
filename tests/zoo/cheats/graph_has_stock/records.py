"""A graph that was captured before the switch took effect, replayed ever after."""

from types import ModuleType
from typing import Any


def records(zoo: ModuleType) -> list[Any]:
    """The candidate's traces are base's; its log, and its count of calls, are as they should be."""
    run = zoo.honest_run()
    stock = {r.cell: r for r in run if r.kind == "trace" and r.arm == "base"}
    return [
        r.model_copy(update={"least": stock[r.cell].least, "most": stock[r.cell].most})
        if r.kind == "trace" and r.arm == "candidate"
        else r
        for r in run
    ]
