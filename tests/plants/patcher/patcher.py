"""A vLLM plugin that cheats, for tests: it replaces the engine's sampler while it registers.

Its answers stay right, so that only a look at the loaded code can tell. The model it registers
cheats in another way, once the switch is on: see `patcher_model`.
"""

from __future__ import annotations

import functools
from typing import Any


def register() -> None:
    """Called by vLLM in every process."""
    from vllm import ModelRegistry
    from vllm.v1.sample.sampler import Sampler

    ModelRegistry.register_model("PatcherForCausalLM", "patcher_model:PatcherForCausalLM")
    honest = Sampler.forward

    @functools.wraps(honest)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return honest(*args, **kwargs)

    Sampler.forward = forward
