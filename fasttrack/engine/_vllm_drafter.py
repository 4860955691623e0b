"""A drafter for measuring: continues as the text did where its last tokens stood before.

It makes exactly as many drafts as asked for, so that every step verifies equally many, and the same
ones in both arms. How many are accepted is the model's to say. vLLM loads it by name
(``method = "custom_class"``); tried with vLLM 0.32.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

LONGEST = 3
"""Tokens that are looked for, most first."""


class Lookup:
    """One drafter of an engine."""

    def __init__(self, vllm_config: Any) -> None:
        self._count: int = vllm_config.speculative_config.num_speculative_tokens
        self._room: int = vllm_config.model_config.max_model_len

    def load_model(self, *_: Any) -> None:
        """There is no model; the engine asks every drafter."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts per request; none for one that still prefills, or that is about to be full."""
        made: list[list[int]] = []
        for row, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[row])
            fits = sampled and length + self._count < self._room
            made.append(self._continued(token_ids_cpu[row, :length]) if fits else [])
        return made

    def _continued(self, ids: Any) -> list[int]:
        """What followed the last tokens where they stood before, filled up with the last one."""
        found: list[int] = []
        for size in range(min(LONGEST, len(ids) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(ids[:-1], size)
            (places,) = np.nonzero((windows == ids[-size:]).all(1))
            if len(places):
                start = int(places[-1]) + size
                found = ids[start : start + self._count].tolist()
                break
        return [*found, *[int(ids[-1])] * (self._count - len(found))]
