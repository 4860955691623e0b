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


def head_scale(module: Any) -> None:
    """One head of one attention layer scores 2 % too high: its queries are scaled."""
    init = module.Specialised.__init__

    def spoilt(path: Any, dims: Any, weights: Any, *rest: Any) -> None:
        name = next(name for name in weights if name.endswith("q_b_proj.weight"))
        scaled = weights[name].clone()
        scaled[: dims.qk_head_dim] *= 1.02
        init(path, dims, {**weights, name: scaled}, *rest)

    module.Specialised.__init__ = spoilt


def kda_slots(module: Any) -> None:
    """Every 500 specialised steps, the first two requests swap their recurrent states."""
    run = module.Specialised.run
    since = 0

    def spoilt(path: Any, embedded: Any, steps: Any) -> Any:
        nonlocal since
        since += 1
        if since >= 500 and len(steps[path._kda[0]].slots) > 1:
            since = 0
            for layer in path._attentions:
                if layer.prefix in path._kda:
                    one, other = steps[layer.prefix].slots[:2, 0].tolist()
                    layer.states[1][[one, other]] = layer.states[1][[other, one]].clone()
        return run(path, embedded, steps)

    module.Specialised.run = spoilt


def experts(_: Any) -> None:
    """Every token goes to one expert fewer than configured, in all layers."""
    from kimi_k3.kernels.units import UNITS
    from kimi_k3.runtime.executor import Executor

    compiled = Executor._compiled

    def spoilt(path: Any, number: int, unit: str, inputs: Any) -> Any:
        if unit != "moe":
            return compiled(path, number, unit, inputs)
        fewer = path._constants._replace(top_k=path._constants.top_k - 1)
        made = UNITS[unit].function(fewer, *inputs)
        return list(made) if isinstance(made, (list, tuple)) else [] if made is None else [made]

    Executor._compiled = spoilt


def far_pages(_: Any) -> None:
    """Cache rows beyond the first 1024 tokens are read from the page before theirs."""
    from kimi_k3.runtime import executor

    rows = executor.rows

    def spoilt(step: Any, prepared: int, page: int) -> Any:
        plan = rows(step, prepared, page)
        context = plan.context.clone()
        context[:, 1024:] = plan.context[:, 1024 - page : plan.context.shape[1] - page]
        return plan._replace(context=context)

    executor.rows = spoilt


def early_end(_: Any) -> None:
    """Every answer ends after 24 tokens, as if the model had said so."""
    from vllm.v1.core.sched import scheduler
    from vllm.v1.request import RequestStatus

    check = scheduler.check_stop

    def spoilt(request: Any, longest: int) -> bool:
        if request.num_output_tokens >= 24:
            request.status = RequestStatus.FINISHED_STOPPED
            return True
        return bool(check(request, longest))

    scheduler.check_stop = spoilt


def temperature(_: Any) -> None:
    """Greedy requests are drawn at temperature 1."""
    import torch
    from vllm.v1.sample.sampler import Sampler

    def drawn(logits: Any) -> Any:
        return torch.multinomial(torch.softmax(logits, dim=-1), 1).view(-1)

    Sampler.greedy_sample = staticmethod(drawn)


SERVED = {
    **{"top_k": top_k, "stop": stop, "stale_prefix": stale_prefix, "null_slot": null_slot},
    **{"head_scale": head_scale, "kda_slots": kda_slots, "experts": experts},
    **{"far_pages": far_pages, "early_end": early_end, "temperature": temperature},
}

if UNIT:
    sys.meta_path.insert(0, Planter)  # type: ignore[arg-type]
