"""The K3 text decoder as vLLM runs it: stock layers, or the prepared executor, step by step.

Owns: the decoder's wiring, loading, and acting on each step's plan. Does not own: the layers, the
plan, the executor. Read by: vLLM's model loader and runner, through the plugin.
Source of the wiring: Kimi K3 technical report (arXiv 2607.24653), sections 2.1 and 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.interfaces import HasInnerState, IsHybrid

from kimi_k3.backend import KDAMetadata, MLAMetadata
from kimi_k3.dims import Dims
from kimi_k3.layers.attn_res import Bank, Site
from kimi_k3.layers.common import MLP
from kimi_k3.layers.kda import KDA
from kimi_k3.layers.loading import Slots, linear, load_all, under
from kimi_k3.layers.mla import MLA
from kimi_k3.layers.moe import LatentMoE
from kimi_k3.reference.weights import LM_HEAD, MODEL, layer_prefix
from kimi_k3.runtime.evidence import Recorder
from kimi_k3.runtime.plan import Plan, StepFacts, plan
from kimi_k3.support import refuse_unsupported, switch_of

if TYPE_CHECKING:
    from kimi_k3.specialised import Specialised


class Layer(nn.Module):
    """One decoder layer: two AttnRes sites, an attention, an MLP or MoE."""

    def __init__(self, dims: Dims, index: int, vllm_config: VllmConfig, prefix: str) -> None:
        """`prefix` names the layer; `index` is 0-based."""
        super().__init__()
        self.opens_block = dims.block_write(index) is not None
        self.attention_site, self.mlp_site = Site(dims), Site(dims)
        attention = KDA if dims.layer_kinds[index] == "kda" else MLA
        self.self_attn: KDA | MLA = attention(dims, vllm_config, f"{prefix}.self_attn")
        self.mlp: LatentMoE | MLP = (
            LatentMoE(dims, f"{prefix}.mlp")
            if index in dims.moe_layers
            else MLP(dims, dims.dense_inter, f"{prefix}.mlp")
        )

    def slots(self) -> Slots:
        """Checkpoint names below this layer."""
        mlp = "block_sparse_moe." if isinstance(self.mlp, LatentMoE) else "mlp."
        return (
            self.attention_site.slots("self_attention_res", "input_layernorm")
            | self.mlp_site.slots("mlp_res", "post_attention_layernorm")
            | under("self_attn.", self.self_attn.slots())
            | under(mlp, self.mlp.slots())
        )

    def forward(self, bank: Bank, step: KDAMetadata | MLAMetadata | None) -> Tensor:
        """Advance the bank by the attention; return the MLP's output [T, hidden], not yet added."""
        attended = self.self_attn(self.attention_site(bank), step)
        if self.opens_block:
            bank.restart(attended)
        else:
            bank.add(attended)
        out: Tensor = self.mlp(self.mlp_site(bank))
        return out


class FasttrackKimiK3ForCausalLM(nn.Module, HasInnerState, IsHybrid):
    """K3-style text decoder with hybrid KDA state and latent MLA cache."""

    floor: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        """Raises ValueError naming every unsupported setting."""
        super().__init__()
        refuse_unsupported(vllm_config)
        self.config = vllm_config.model_config.hf_config
        self.dims: Dims = self.config.dims()
        self.switch = switch_of(vllm_config)
        speculative = vllm_config.speculative_config
        self.drafts: int = speculative.num_speculative_tokens if speculative else 0
        dims, start = self.dims, f"{prefix}." if prefix else ""
        self.embed_tokens = VocabParallelEmbedding(dims.vocab, dims.hidden)
        stack = [
            Layer(dims, index, vllm_config, f"{start}model.layers.{index}")
            for index in range(dims.layers)
        ]
        self.layers = nn.ModuleList(stack)
        self.final_site = Site(dims)
        floor = torch.tensor((dims.hidden * dims.eps) ** 0.5, dtype=torch.float32)
        self.register_buffer("floor", floor, persistent=False)
        self.lm_head = ParallelLMHead(dims.vocab, dims.hidden, prefix=f"{start}lm_head")
        self.logits_processor = LogitsProcessor(dims.vocab)
        self.recorder = Recorder(
            get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size(), self.switch
        )
        self.specialised: Specialised | None = None
        # Plain lists: the same modules, typed, without a lookup through `nn.Module` per step.
        self._stack = tuple(stack)
        self._kda = [one.self_attn.prefix for one in stack if isinstance(one.self_attn, KDA)]
        self._mla = [one.self_attn.prefix for one in stack if isinstance(one.self_attn, MLA)]

    # ---- vLLM's hybrid state contract, asked before the model exists ----------------------------

    @classmethod
    def get_mamba_state_shape_from_config(
        cls, vllm_config: VllmConfig
    ) -> tuple[tuple[int, ...], ...]:
        """Shapes of one request's KDA states on one rank."""
        dims = vllm_config.model_config.hf_config.dims()
        tp = vllm_config.parallel_config.tensor_parallel_size
        return dims.conv_state_shape(tp), dims.recurrent_state_shape(tp)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[torch.dtype, ...]:
        """Both states are FP32."""
        return torch.float32, torch.float32

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        """Both states are copied as whole slots when the engine moves them for prefix caching."""
        return get_temporal_copy_spec, get_temporal_copy_spec

    # ---- loading ------------------------------------------------------------------------------

    def slots(self) -> Slots:
        """Every checkpoint name and where it goes."""
        found: Slots = {
            MODEL + "embed_tokens.weight": linear(self.embed_tokens, dim=0),
            LM_HEAD: linear(self.lm_head, dim=0),
        }
        found |= under(MODEL, self.final_site.slots("output_attn_res", "norm"))
        for index, layer in enumerate(self._stack):
            found |= under(layer_prefix(index), layer.slots())
        return found

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load a checkpoint in the released model's names; returns the parameters set.

        Raises one ValueError naming every missing, unknown or wrong-shaped tensor.
        """
        wanted = self.switch == "latency_specialized"
        raw = load_all(self.dims, self.slots(), weights, keep=wanted)
        for module in self.modules():
            if isinstance(module, Site | KDA | MLA):
                module.finish_loading()
        if wanted:
            from kimi_k3.specialised import Specialised

            attentions = [layer.self_attn for layer in self._stack]
            self.specialised = Specialised(self.dims, raw, attentions, self.recorder, self.drafts)
        return {name for name, _ in self.named_parameters()}

    # ---- forward ------------------------------------------------------------------------------

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Token embeddings [T, hidden]."""
        out: Tensor = self.embed_tokens(input_ids)
        return out

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Final normalised hidden states [T, hidden] of one step. K3 uses no positions."""
        metadata = get_forward_context().attn_metadata
        steps: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
        facts = steps[self._kda[0]].facts if steps else None
        if facts and self.specialised and not self.recorder.prepared:
            raise RuntimeError("requests arrived before the engine handed over its caches")
        tokens = self.specialised.tokens if self.specialised else 1
        chosen = plan(facts, self.switch, self.recorder.prepared, tokens)
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        if chosen.path == "specialised":
            assert self.specialised is not None
            out = self.specialised.run(inputs_embeds, steps)
        else:
            out = self._stock(inputs_embeds, steps)
        self._record(chosen, facts, steps)
        return out

    def _record(self, chosen: Plan, facts: StepFacts | None, steps: dict[str, Any]) -> None:
        if facts is None:
            self.recorder.record(chosen, None)
            return
        groups = {id(step): step for step in (steps[name] for name in self._kda)}
        slots = [step.written() for step in groups.values()]
        self.recorder.record(chosen, facts, slots, [steps[self._mla[0]].slot_mapping])

    def _stock(self, embedded: Tensor, steps: dict[str, Any]) -> Tensor:
        bank = Bank(self.dims, embedded, self.floor)
        pending: Tensor | None = None
        for layer in self._stack:
            if pending is not None:
                bank.add(pending)
            pending = layer(bank, steps.get(layer.self_attn.prefix))
        assert pending is not None
        bank.add(pending)
        out: Tensor = self.final_site(bank, round_first=True)
        return out

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """Logits [T, vocab] of normalised hidden states; None on ranks that do not gather."""
        logits: Tensor | None = self.logits_processor(self.lm_head, hidden_states)
        return logits
