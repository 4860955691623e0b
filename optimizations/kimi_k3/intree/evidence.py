"""What really ran over vLLM's model: the path of every step, and the device's own count.

Owns: reading a step's facts off vLLM's batch, what it writes, the count that graphs keep. Does not
own: the record itself (`runtime.evidence`), the decision (`plan`). Knows no class of vLLM. Read by:
`state`, the model.

Two counts that know nothing of each other: the runner's, of steps whose graph was captured
specialised, and the device's, to which every such graph adds one when it is replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kimi_k3.runtime.evidence import Recorder
from kimi_k3.runtime.plan import StepFacts


def facts_of(batch: Any) -> StepFacts:
    """The rows of one step of vLLM's second runner: `num_reqs`, `num_scheduled_tokens` [requests],
    `is_prefilling_np` [requests], `num_draft_tokens`."""
    lengths = np.asarray(batch.num_scheduled_tokens)[: batch.num_reqs]
    decode = ~np.asarray(batch.is_prefilling_np)[: batch.num_reqs]
    verify = decode & (lengths > 1)
    alike = bool(verify.all() and len(set(lengths.tolist())) == 1)
    return StepFacts(
        requests=int(batch.num_reqs),
        tokens=int(lengths.sum()),
        decode_rows=int((decode & (lengths == 1)).sum()),
        verify_rows=int(verify.sum()),
        verify_tokens=int(lengths[0]) if alike else 0,
    )


def writes_of(
    groups: Iterable[Any], told: Mapping[str, Any], slots: Tensor, requests: int, tokens: int
) -> tuple[list[Tensor], list[Tensor]]:
    """State blocks and cache rows that a step writes, on the device. Copies, since vLLM tells the
    next step in the same memory.

    `groups`: of layers that share a block table; `told`: a step's metadata by layer; `slots` int64
    [groups, tokens or more]: where each token's row lies. A KDA layer's metadata tells its blocks:
    one of a request, or where the request verifies drafts one of each of its rows.
    """
    states, rows = [], []
    for number, group in enumerate(groups):
        own = told[group.layer_names[0]]
        if hasattr(own, "non_spec_state_indices_tensor"):
            drafted, plain = own.num_spec_decodes, own.non_spec_state_indices_tensor
            if drafted:
                states.append(own.spec_state_indices_tensor[:drafted].flatten())
            if plain is not None:
                states.append(plain[: requests - drafted])
        else:
            rows.append(slots[number, :tokens])
    return [torch.cat(states)] if states else [], [torch.cat(rows)] if rows else []


class GraphRecorder(Recorder):
    """A recorder that also hands out the device's count."""

    executed: Tensor | None = None
    """int64 [1], on the device."""
    _handed_out = 0

    def drain(self, clear: bool = True) -> dict[str, Any]:
        """As `Recorder.drain`, with `graph_steps`: specialised graphs the device replayed since the
        last clearing drain. Waits for the device."""
        found = super().drain(clear)
        total = 0 if self.executed is None else int(self.executed)
        found["graph_steps"] = total - self._handed_out
        if clear:
            self._handed_out = total
        return found
