"""One eval per module of this folder: adding the file is the registration.

Leaf: measuring and verifying find the same tasks here.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from fasttrack.evals.task import EvalTask


def registry() -> tuple[EvalTask, ...]:
    """All tasks: the `TASK` of every module in this folder, by name of the module."""
    found = []
    for module in pkgutil.iter_modules(__path__):
        task = getattr(import_module(f"{__name__}.{module.name}"), "TASK", None)
        if task is not None:
            found.append(task)
    return tuple(found)
