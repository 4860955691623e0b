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
        self,
        batches: Iterable[int],
        largest: Mapping[Op, int] = LARGEST,
        ranks: int = 1,
        each: int = 1,
    ) -> None:
        """`batches`: rows of the full graphs that vLLM will capture, `each` of them of one request:
        more than one where steps verify drafts."""
        self._ranks, self._each = ranks, each
        self._sizes = tuple(sorted(set(batches)))
        self.captured: set[int] = set()
        """Batches of which a graph with launches of ours was captured."""
        self.choose(largest)

    def choose(self, largest: Mapping[Op, int]) -> None:
        """Settle which ops of which batch are ours in graphs captured from now on."""
        each = self._each
        found = {batch: plan.ours(batch, largest, self._ranks, each) for batch in self._sizes}
        self.ours = {batch: ops for batch, ops in found.items() if ops}
        """By batch; vLLM's graphs of other batches are stock."""

    def takes(self, batch: int, capturing: bool, piecewise: bool, steps: Iterable[Any]) -> bool:
        """Whether this forward of `batch` rows is ours: a full graph of requests with `each` rows,
        with something of ours, is being captured. `steps`: what the step's metadata says of every
        layer's attention, None where it says nothing.

        A piecewise graph is keyed by its tokens alone and may be replayed with prompts in it.
        """
        if not capturing or piecewise or batch not in self.ours:
            return False
        return all(_uniform(step, batch, self._each) for step in steps)


def _uniform(step: Any, rows: int, each: int) -> bool:
    """Whether a layer's metadata is of requests with `each` of these rows, and of nothing else.

    MLA's calls all of them decodes, whatever they verify, and a short prefill too; KDA's tells
    decodes from verifications, and either from prefill.
    """
    if step is None or step.num_prefills:
        return False
    requests, tokens = step.num_decodes, step.num_decode_tokens
    if hasattr(step, "num_spec_decodes"):
        if step.num_decodes if each > 1 else step.num_spec_decodes:
            return False
        requests += step.num_spec_decodes
        tokens += step.num_spec_decode_tokens
    return bool(requests * each == tokens == rows)
