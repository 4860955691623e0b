"""Which experts a vLLM engine's model chose, seen from outside: whatever it routes with.

vLLM's own routers tell what they chose, if asked. Of a model that has none of these, routing is an
operator that takes scores with one column per expert and gives integers, fewer per row: a top-k, or
a fused kernel that writes them. A dispatch mode around an engine step sees each one, in the order
of the model's layers. Neither sees anything of a graph's replay. vLLM can return routed experts
too, but only for a whole session. Used by the vLLM child. Works where the model runs in this
process (one rank); tried with vLLM 0.32.0 on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class CannotWatch(Exception):
    """Why it cannot be seen what the model chooses."""


def watch(model: Any, experts: int) -> Routers | Operators:
    """What counts the model's choices. Raises `CannotWatch`.

    Kernels of a GPU are called in ways that a dispatch mode breaks, inside the engine.
    """
    modules = (getattr(module, "router", None) for module in model.modules())
    routers = {id(one): one for one in modules if hasattr(one, "set_capture_fn")}
    if routers:
        return Routers(list(routers.values()), experts)
    if torch.cuda.is_available():
        raise CannotWatch("the model has no router of vLLM's, and operators cannot be watched here")
    return Operators(experts)


class Routers:
    """Counts how often each expert is chosen, layer by layer, by vLLM's routers while it is open.

    A router has one place for who is told; who was told before is told again afterwards.
    """

    def __init__(self, routers: list[Any], experts: int) -> None:
        self._routers = routers
        self._told: list[Any] = []
        self._counts = [torch.zeros(experts, dtype=torch.int64) for _ in routers]

    @property
    def counts(self) -> list[torch.Tensor]:
        """[experts] int64 on the CPU, per layer that routes; none where nothing was seen."""
        return self._counts if any(one.any() for one in self._counts) else []

    def step(self) -> None:
        """A new engine step begins."""

    def __enter__(self) -> None:
        self._told = [router.capture_fn for router in self._routers]
        for router, counts in zip(self._routers, self._counts, strict=True):
            router.set_capture_fn(_counting(counts))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for router, told in zip(self._routers, self._told, strict=True):
            router.set_capture_fn(told)


def _counting(counts: torch.Tensor) -> Callable[[torch.Tensor], None]:
    """Adds chosen experts [rows, K] to `counts`; rows without a token choose none."""

    def add(chosen: torch.Tensor) -> None:
        ids = chosen.flatten().long().cpu()
        known = ids[(ids >= 0) & (ids < len(counts))]
        counts.add_(torch.bincount(known, minlength=len(counts)))

    return add


class Operators(TorchDispatchMode):
    """The same by the operators that are called inside it."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self._experts = experts
        self._layer = 0
        self.counts: list[torch.Tensor] = []
        """[experts] int64 on the CPU, per layer that routes."""

    def step(self) -> None:
        """A new engine step begins: its first routing is the first layer's again."""
        self._layer = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and look whether it routed."""
        result = func(*args, **(kwargs or {}))
        chosen = next(self._chosen(func, args, kwargs or {}, result), None)
        if chosen is not None:
            self._count(chosen)
        return result

    def _chosen(self, func: Any, args: Any, kwargs: Any, result: Any) -> Iterator[torch.Tensor]:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        rows = {
            one.shape[0]
            for one in given
            if one.dim() == 2 and one.is_floating_point() and one.shape[1] == self._experts
        }
        if not rows:
            return
        made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        if func._schema.is_mutable:
            made += given
        for one in made:
            whole = not one.is_floating_point() and one.dtype != torch.bool
            if whole and one.dim() == 2 and one.shape[0] in rows and one.shape[1] < self._experts:
                yield one

    def _count(self, chosen: torch.Tensor) -> None:
        if self._layer == len(self.counts):
            self.counts.append(torch.zeros(self._experts, dtype=torch.int64))
        found = torch.bincount(chosen.flatten().long().cpu(), minlength=self._experts)
        self.counts[self._layer] += found
        self._layer += 1


def random_tokens(lengths: list[int], vocabulary: int, seed: int) -> list[list[int]]:
    """Token ids drawn evenly from the whole vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths
    ]
