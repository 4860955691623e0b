"""vLLM's model state of Kimi K3 with what this path needs of it: when weights are loaded, when
caches are bound, and what every step was.

Owns: those three moments. Does not own: the decision (`plan`), the record (`evidence`). Read by:
vLLM's model runner, which makes one.
"""

from __future__ import annotations

from typing import Any

from vllm.config import CUDAGraphMode
from vllm.models.kimi_k3.nvidia.model_state import KimiK3ModelState

from kimi_k3.intree.evidence import facts_of, writes_of


class ModelState(KimiK3ModelState):
    """One of `FasttrackKimiLinearForCausalLM`."""

    def __init__(self, vllm_config: Any, model: Any, encoder_cache: Any, device: Any) -> None:
        """After the weights are loaded and rearranged."""
        super().__init__(vllm_config, model, encoder_cache, device)
        self._step: Any = None
        self._asked = bool(vllm_config.parallel_config.worker_extension_cls)
        """Whether somebody can ask for what steps wrote; it costs two small copies each."""
        model.build()

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """After caches are bound, and before graphs are captured: once for profiling, once for
        good."""
        super().initialize_kv_cache(kv_cache_config, block_tables)
        groups = zip(kv_cache_config.kv_cache_groups, block_tables.input_block_tables, strict=True)
        widths = {name: table.shape[1] for group, table in groups for name in group.layer_names}
        self.language_model.prepare(widths)

    def preprocess_state(self, input_batch: Any, *arguments: Any, **named: Any) -> None:
        """vLLM calls this for steps that have requests, and for no others."""
        super().preprocess_state(input_batch, *arguments, **named)
        self._step = input_batch

    def prepare_attn(
        self, input_batch: Any, cudagraph_mode: Any, *arguments: Any, **named: Any
    ) -> Any:
        """Right before the step runs: `cudagraph_mode` says how."""
        told = super().prepare_attn(input_batch, cudagraph_mode, *arguments, **named)
        if input_batch is self._step:
            self._step = None
            full = cudagraph_mode == CUDAGraphMode.FULL
            graph = input_batch.num_tokens_after_padding if full else None
            facts = facts_of(input_batch)
            wrote: Any = ([], [])
            if self._asked:
                _, slots, _, config, *_ = arguments
                groups = config.kv_cache_groups
                wrote = writes_of(groups, told, slots, facts.requests, facts.tokens)
            self.language_model.note(facts, graph, *wrote)
        return told
