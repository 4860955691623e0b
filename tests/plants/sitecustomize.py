"""Planted faults for child processes of the test suite; the product knows nothing of them.

With this folder on PYTHONPATH and `FASTTRACK_TEST_PLANT=UNIT`, one compiled unit of the Kimi K3
path returns its first output with the second row off by one part in a thousand. Python imports a
module of this name by itself at start-up.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

TARGET = "kimi_k3.kernels.compiler"
UNIT = os.environ.get("FASTTRACK_TEST_PLANT")


class Planter:
    """Finds `TARGET` as usual, and spoils one unit once the module has been executed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != TARGET:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                plant(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def plant(module: Any) -> None:
    """Wrap `load`, through which the executor and the kernel cases both get their units."""
    load = module.load

    def spoilt(recipes: Any) -> list[Any]:
        return [
            off(kernel) if recipe.unit == UNIT else kernel
            for recipe, kernel in zip(recipes, load(recipes), strict=True)
        ]

    module.load = spoilt


def off(kernel: Any) -> Any:
    """The unit with its second row (of its only, if there is one) a little too large."""

    def run(tensors: Any) -> list[Any]:
        outputs = list(kernel(tensors))
        row = min(1, outputs[0].shape[0] - 1)
        outputs[0][row] *= 1.001
        return outputs

    return run


if UNIT:
    sys.meta_path.insert(0, Planter)  # type: ignore[arg-type]
