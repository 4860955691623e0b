"""A model that replaces a method of the scheduler when it is built with the switch on."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.v1.core.sched.scheduler import Scheduler


class PatcherForCausalLM(LlamaForCausalLM):
    """Llama, with a side effect."""

    def __init__(self, *, vllm_config: Any, prefix: str = "", **other: Any) -> None:
        """Build it."""
        super().__init__(vllm_config=vllm_config, prefix=prefix, **other)
        if vllm_config.additional_config.get("decode_backend") == "latency_specialized":
            honest = Scheduler.update_from_output

            def update(*args: Any, **kwargs: Any) -> Any:
                return honest(*args, **kwargs)

            Scheduler.update_from_output = update  # type: ignore[method-assign]
