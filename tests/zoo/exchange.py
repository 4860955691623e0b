"""An all-reduce between ranks played by threads, for plants: mailboxes, and a wait to leave out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch
from plain import Linear, Tensors
from torch import Tensor

RANKS = 3


class Exchange(Linear):
    """Each rank multiplies a third of the depth; the sum goes over mailboxes, in rank order."""

    ranks = RANKS
    waits = True

    def candidate(self, inputs: Tensors) -> Tensors:
        """All ranks at once."""
        return self.candidate_skewed(inputs, [0.0] * RANKS)

    def candidate_skewed(self, inputs: Tensors, delays_s: Sequence[float]) -> Tensors:
        """Rank i begins `delays_s[i]` late."""
        parts = [t.tensor_split(RANKS, dim=1) for t in (inputs["x"], inputs["weight"])]
        mailboxes = torch.zeros(RANKS, len(inputs["x"]), 64)
        full = [threading.Event() for _ in range(RANKS)]
        results: list[Tensor] = [torch.empty(0)] * RANKS

        @torch.inference_mode()
        def work(rank: int) -> None:
            # The mode of the calling thread does not reach this one.
            time.sleep(delays_s[rank])
            mailboxes[rank] = parts[0][rank] @ parts[1][rank].T
            full[rank].set()
            for event, late in zip(full, delays_s, strict=True):
                # A bounded wait that ends before a late rank comes, made certain.
                if self.waits or not late:
                    event.wait()
            results[rank] = mailboxes.sum(0)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"y": results[0]}
