"""Which experts a vLLM engine's model chose, seen from outside: whatever operator it routes with.

Routing is an operator that takes scores with one column per expert and gives integers, fewer per
row: a top-k, or a fused kernel that writes them. A dispatch mode around an engine step sees each
one, in the order of the model's layers; it sees nothing of a graph's replay. vLLM can return routed
experts too, but only of its own expert layers, and for a whole session. Used by the vLLM child.
Works where the model runs in this process (one rank); tried with vLLM 0.32.0 on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Routing(TorchDispatchMode):
    """Counts how often each expert is chosen, layer by layer, in the steps run inside it."""

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
