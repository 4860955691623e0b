"""vLLM's own Kimi K3 text decoder, with decode steps of ours where the option asks for them.

Owns: keeping the experts as the checkpoint has them, acting on `Decode.takes`. Does not own:
anything else of the model, which is inherited; with the option off nothing but names differs from
vLLM's. Imported by vLLM when a checkpoint names the architecture.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    get_tp_group,
    tensor_model_parallel_all_reduce,
)
from vllm.models.kimi_k3.nvidia.model import KimiLinearForCausalLM

from kimi_k3.intree.evidence import GraphRecorder
from kimi_k3.intree.plan import TABLES, graphs, plan
from kimi_k3.intree.support import (
    in_place,
    refuse_graphs,
    refuse_unsupported,
    switch_of,
    table_of,
)
from kimi_k3.runtime.plan import StepFacts


class FasttrackKimiLinearForCausalLM(KimiLinearForCausalLM):
    """See the module."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        """As vLLM calls it. Raises `RefusedError` for what is not supported."""
        refuse_unsupported(vllm_config)
        on = switch_of(vllm_config) != "auto"
        if on:
            refuse_graphs(vllm_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._on = on
        self._largest = TABLES[table_of(vllm_config)]
        self.recorder = GraphRecorder(
            get_tensor_model_parallel_rank(),
            get_tensor_model_parallel_world_size(),
            switch_of(vllm_config),
        )
        self._in_place = in_place(vllm_config)
        self._experts: dict[int, Any] = {}
        self.decode: Any = None

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """As vLLM's; what it rearranges afterwards is kept as it is now, if the table needs it:
        all of it, or enough to know it again."""
        loaded: set[str] = super().load_weights(weights)
        if self._on and self._largest["moe"]:
            from kimi_k3.intree.experts import kept

            for number, own in self._routed():
                self._experts[number] = kept(own, sample=self._in_place)
        return loaded

    def _routed(self) -> Iterator[tuple[int, Any]]:
        """vLLM's modules of routed experts, by number of layer."""
        for layer in self.model.layers:
            if layer.is_moe_layer:
                yield layer.layer_idx, layer.block_sparse_moe.experts.routed_experts

    def get_model_state_cls(self) -> type[Any]:
        """Ours is told when to build, when to prepare, and of every step."""
        from kimi_k3.intree.state import ModelState

        return ModelState

    def build(self) -> None:
        """Called once the weights are loaded and rearranged. Raises ValueError where experts that
        should be read in place are not as they should be."""
        if not self._on:
            return
        from kimi_k3.intree.decode import Decode
        from kimi_k3.intree.experts import located
        from kimi_k3.intree.ranks import Ranks, exchanges

        ranks = Ranks(
            get_tensor_model_parallel_world_size(),
            tensor_model_parallel_all_reduce,
            get_tensor_model_parallel_rank(),
        )
        if self._largest["exchange"] or self._largest["tail"]:
            config = self.config
            widths = config.hidden_size, config.routed_expert_hidden_size, config.num_experts
            ranks.connect(
                exchanges(*widths, ranks.size),
                self.model.embed_tokens.weight.device,
                get_tp_group().cpu_group if ranks.size > 1 else None,
            )
        sizes = self.vllm_config.compilation_config.cudagraph_capture_sizes or ()
        each = 1 + self.vllm_config.num_speculative_tokens
        batches = graphs(sizes, self.vllm_config.scheduler_config.max_num_seqs, each)
        if self._in_place and self._experts:
            self._experts = {
                number: located(own, self._experts[number]) for number, own in self._routed()
            }
        self.decode = Decode(self.model, self._experts, batches, ranks, self._largest, each)
        self.recorder.prepared = tuple(self.decode.capture.ours)
        self.recorder.extra_bytes = self.decode.extra_bytes
        self.recorder.executed = self.decode.executed

    def prepare(self, widths: Mapping[str, int]) -> None:
        """Called whenever vLLM has bound caches. `widths`: pages a request may have, by layer."""
        if self.decode is not None:
            self.decode.prepare(widths)

    def note(
        self,
        facts: StepFacts,
        graph: int | None,
        states: Sequence[Tensor] = (),
        rows: Sequence[Tensor] = (),
    ) -> None:
        """Record one step; `graph`: the rows of the full graph that runs it; `states`, `rows`:
        what it writes, of KDA and of MLA. Raises `PeerLostError` where an earlier step waited for a
        rank in vain, which ends the engine."""
        captured: Collection[int] = ()
        if self.decode is not None:
            self.decode.noticed()
            captured = self.decode.capture.captured
        chosen = plan(facts, self.recorder.switch, captured, graph)
        if self.decode is not None and chosen.path == "specialised":
            self.decode.given()
        self.recorder.record(chosen, facts, states, rows)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """vLLM's forward, or ours into a graph being captured."""
        decode = self.decode
        if decode is not None and intermediate_tensors is None and decode.takes(len(positions)):
            if inputs_embeds is None:
                return decode.run(self.embed_input_ids(input_ids), positions)
            return decode.run(inputs_embeds.clone(), positions)
        return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs)
