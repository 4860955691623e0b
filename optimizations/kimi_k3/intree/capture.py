"""Which graphs of vLLM get launches of ours while they are captured.

Owns: the ops of each batch, the conditions under which a forward is ours, the record of graphs that
were captured so. Does not own: the table (`plan`), the launches. Knows no engine: what vLLM's
forward context says is passed in. Read by: `decode`, and through it the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kimi_k3.intree import plan
from kimi_k3.intree.plan import LARGEST, Op


class Capture:
    """Of one model. Forwards outside a capture are never ours: a graph is, whole, or none of it."""

    def __init__(
        self, batches: Iterable[int], largest: Mapping[Op, int] = LARGEST, ranks: int = 1
    ) -> None:
        """`batches`: those that vLLM will capture."""
        self._ranks = ranks
        self._sizes = tuple(sorted(set(batches)))
        self.captured: set[int] = set()
        """Batches of which a graph with launches of ours was captured."""
        self.choose(largest)

    def choose(self, largest: Mapping[Op, int]) -> None:
        """Settle which ops of which batch are ours in graphs captured from now on."""
        found = {batch: plan.ours(batch, largest, self._ranks) for batch in self._sizes}
        self.ours = {batch: ops for batch, ops in found.items() if ops}
        """By batch; vLLM's graphs of other batches are stock."""

    def takes(self, batch: int, capturing: bool, piecewise: bool, steps: Iterable[Any]) -> bool:
        """Whether this forward of `batch` tokens is ours: a full graph of pure decode, of a batch
        with something of ours, is being captured. `steps`: what the step's metadata says of every
        layer's attention, None where it says nothing.

        A piecewise graph is keyed by its tokens alone and may be replayed with prompts in it.
        """
        if not capturing or piecewise or batch not in self.ours:
            return False
        return all(map(_decodes, steps))


def _decodes(step: Any) -> bool:
    """Whether a layer's metadata is of one-token decodes and of nothing else."""
    if step is None or step.num_prefills:
        return False
    return not getattr(step, "num_spec_decodes", 0)
