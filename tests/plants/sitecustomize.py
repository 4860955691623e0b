"""Planted faults for child processes of the test suite; the product knows nothing of them.

With this folder on PYTHONPATH and `FASTTRACK_TEST_PLANT=UNIT`, one compiled unit of the Kimi K3
path returns its first output with the second row off by one part in a thousand. Names of `SERVED`,
with commas between, plant faults in what users see instead, in processes that load the specialised
path only: the base arm stays as it is. Python imports a module of this name by itself at start-up.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

UNIT = os.environ.get("FASTTRACK_TEST_PLANT")


class Planter:
    """Finds the target's module as usual, and plants the fault once it has been executed."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        faults = [SERVED[word] for word in (UNIT or "").split(",") if word in SERVED]
        if name != ("kimi_k3.specialised" if faults else "kimi_k3.kernels.compiler"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                for fault in faults or [plant]:
                    fault(module)

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


def top_k(_: Any) -> None:
    """The sampler forgets top-k."""
    from vllm.v1.sample.ops import topk_topp_sampler as sampler

    apply = sampler.apply_top_k_top_p
    sampler.apply_top_k_top_p = lambda logits, k, p: apply(logits, None, p)


def stop(_: Any) -> None:
    """Stop strings are never found."""
    from vllm.v1.engine import detokenizer

    detokenizer.check_stop_strings = lambda *_, **__: None


def stale_prefix(module: Any) -> None:
    """A specialised step writes cache rows of requests that are not in it."""

    past: set[int] = set()

    def after(path: Any, steps: Any) -> None:
        used = set(steps[path._mla[0]].block_table.flatten().tolist())
        for layer in path._attentions:
            if layer.prefix in path._mla:
                for page in past - used - {0}:
                    layer.pages[page] += 0.5
        past.update(used)

    _then(module, after)


def null_slot(module: Any) -> None:
    """A specialised step writes the state slot that belongs to nobody."""

    def after(path: Any, _: Any) -> None:
        for layer in path._attentions:
            if layer.prefix in path._kda:
                layer.states[1][0] += 1.0

    _then(module, after)


def _then(module: Any, after: Any) -> None:
    run = module.Specialised.run

    def spoilt(path: Any, embedded: Any, steps: Any) -> Any:
        out = run(path, embedded, steps)
        after(path, steps)
        return out

    module.Specialised.run = spoilt


SERVED = {"top_k": top_k, "stop": stop, "stale_prefix": stale_prefix, "null_slot": null_slot}

if UNIT:
    sys.meta_path.insert(0, Planter)  # type: ignore[arg-type]
