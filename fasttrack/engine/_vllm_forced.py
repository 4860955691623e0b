"""A logits processor that forces given tokens while the engine reports the model's own numbers.

vLLM gathers log-probabilities and ranks before it applies processors (`logprobs_mode` is
``raw_logprobs``), so a forced token's are those of the untouched distribution, through the decode
path. vLLM's own trace replay does the same in its second model runner; this serves the first one,
which CPUs have. Loaded by the engine by name; read by the vLLM child only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

PROCESSOR = f"{__name__}:Forced"
KEY = "fasttrack_forced"
"""Of `SamplingParams.extra_args`: the tokens, in order."""


class Forced(AdapterLogitsProcessor):  # type: ignore[misc]
    """Makes the next given token the only possible one, for requests that bring tokens."""

    def is_argmax_invariant(self) -> bool:
        """It decides the most likely token."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """The request's own processor, or None."""
        tokens = (params.extra_args or {}).get(KEY)
        if tokens is None:
            return None

        def force(made: Sequence[int], logits: Tensor) -> Tensor:
            """Logits [vocabulary] after the tokens `made`."""
            token = tokens[min(len(made), len(tokens) - 1)]
            logits.fill_(float("-inf"))
            logits[token] = 0.0
            return logits

        return force
