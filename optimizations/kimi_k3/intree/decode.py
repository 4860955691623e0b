"""The decode steps that are ours, over the layers of vLLM's own Kimi K3.

Owns: the order of layers and what flows between them, what is compiled and launched once before any
graph is captured, the count of steps that ran. Does not own: the parts of a layer (`layer`), which
parts of which graph are ours (`capture`), vLLM's modules, weights and caches. Read by: the model.

A step is captured into a full CUDA graph, once per batch; vLLM replays it. The caches hold all that
outlives a step, in vLLM's own layout, so any step may run here and the next one stock.

Where steps verify drafts, a request has several rows, and what knows of requests is vLLM's: KDA,
whose states go from row to row, and MLA, which hides a row's future. The rest is by row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context, is_forward_context_available

from kimi_k3.intree.capture import Capture
from kimi_k3.intree.experts import Experts
from kimi_k3.intree.layer import KdaHalf, MixSite, MlaHalf, Moe, Pages, Shared
from kimi_k3.intree.plan import LARGEST, Op
from kimi_k3.intree.ranks import Mailboxes, Ranks
from kimi_k3.kernels.oproj.mailbox import End


class Layer:
    """Parts of one of vLLM's decoder layers that can be ours; `module` is vLLM's own."""

    def __init__(
        self, module: Any, blocks: int, experts: Experts | None, shared: Shared, halves: bool
    ) -> None:
        """`halves`: whether attention may be ours."""
        self.module = module
        sources, opens = module.prev_valid_blocks, bool(module.is_block_write_layer)
        first = module.layer_idx == 0
        self.before = MixSite(
            module.self_attention_res_norm, module.self_attention_res_proj, module.input_layernorm,
            blocks, sources, "none" if first else "add", opens,
        )  # fmt: skip
        self.behind = MixSite(
            module.mlp_res_norm, module.mlp_res_proj, module.post_attention_layernorm,
            blocks, sources + opens, "restart" if opens else "add", False,
        )  # fmt: skip
        attention = module.self_attn
        self.kind: Op = "kda" if hasattr(attention, "in_proj_qkvgfab") else "mla"
        self.half: KdaHalf | MlaHalf | None = None
        if halves and self.kind == "kda":
            self.half = KdaHalf(attention)
        elif halves and MlaHalf.serves(attention):
            self.half = MlaHalf(attention)
        self.moe: Moe | None = None
        if experts is not None:
            self.moe = Moe(module.block_sparse_moe, experts, shared)

    @property
    def prefix(self) -> str:
        """The name under which a step's metadata has this layer's attention."""
        attention = self.module.self_attn
        return str(attention.prefix if self.kind == "kda" else attention.layer_name)


class Decode:
    """Built once the weights are loaded. Not thread-safe."""

    def __init__(
        self,
        backbone: Any,
        experts: Mapping[int, Experts],
        batches: Collection[int],
        ranks: Ranks,
        largest: Mapping[Op, int] = LARGEST,
        each: int = 1,
    ) -> None:
        """`backbone`: vLLM's `KimiLinearModel`; `experts`: by layer; `batches`: rows of the graphs
        that vLLM will capture, `each` of them of one request."""
        # Here, so that this module can be imported before an engine has chosen its platform.
        from vllm.models.kimi_k3.nvidia.ops import attn_res

        self._last_site = attn_res
        self.backbone = backbone
        config = backbone.config
        self.device = backbone.embed_tokens.weight.device
        self._blocks: int = backbone.num_attn_res_blocks
        self._ranks = ranks
        self._shared = Shared(
            config.num_experts, config.routed_expert_hidden_size, self.device, ranks
        )
        self._layers = [
            Layer(module, self._blocks, experts.get(module.layer_idx), self._shared, each == 1)
            for module in backbone.layers
        ]
        self.capture = Capture(batches, largest, ranks.size, each)
        self.executed = torch.zeros(1, dtype=torch.int64, device=self.device)
        """Steps of ours that the device ran: every graph of ours adds one."""
        self.widths: Mapping[str, int] = {}
        self.hasty = False
        """For the benchmark: let kernels that are not ours begin before ours ahead of them end."""
        parts = (part for layer in self._layers for part in (layer.half, layer.moe))
        self.extra_bytes = sum(part.extra_bytes for part in parts if part is not None)

    def takes(self, batch: int) -> bool:
        """Whether this forward is ours."""
        if not is_forward_context_available():
            return False
        context = get_forward_context()
        told = context.attn_metadata
        return self.capture.takes(
            batch,
            torch.cuda.is_current_stream_capturing(),
            context.cudagraph_runtime_mode == CUDAGraphMode.PIECEWISE,
            [told.get(layer.prefix) if isinstance(told, dict) else None for layer in self._layers],
        )

    def run(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """embedded [B, D], which is overwritten -> the last mixture [B, D], as vLLM's forward gives
        it, before the model's norm."""
        context = get_forward_context()
        steps: Any = context.attn_metadata
        padding = getattr(context, "is_padding", None)
        batch = len(embedded)
        if padding is None:
            rows = torch.full((1,), batch, dtype=torch.int32, device=self.device)
        else:
            rows = (~padding[:batch]).sum(dtype=torch.int32).view(1)
        out = self._run(embedded, positions, steps, rows)
        self.executed.add_(1)
        self._ranks.tell(self.executed)
        self.capture.captured.add(batch)
        return out

    def _run(
        self, embedded: Tensor, positions: Tensor, steps: Mapping[str, Any] | None, rows: Tensor
    ) -> Tensor:
        """Without metadata of a step, attention that is vLLM's is left out and ours touches
        nobody's caches: what `prepare` needs."""
        batch, hidden = embedded.shape
        ours = self.capture.ours[batch]
        prefix = embedded
        bank = prefix.new_empty(batch, self._blocks, hidden)
        delta: Tensor | None = None
        columns: End | None = None
        where = self._places(steps, batch, ours)
        for layer in self._layers:
            module = layer.module
            half = layer.half if layer.kind in ours else None
            moe = layer.moe is not None and "moe" in ours
            if "attn_res" in ours:
                early = half is not None or self.hasty
                if columns is not None:
                    x = layer.before.collect(prefix, columns, bank, early, columns=True)
                else:
                    x = layer.before(prefix, delta, bank, early)
            else:
                x, prefix, _ = module._pre_attn_norm(delta, bank, prefix)
            row: End | None = None
            if half is not None:
                heads = half.attend(x, where[layer.prefix])
                if "exchange" in ours:
                    row = self._boxes.row
                    half.send(heads, row)
                else:
                    delta = self._ranks.total(half.give(heads))
            elif steps is not None:
                delta = module.self_attn(hidden_states=x, positions=positions)
            else:
                delta = x
            if "attn_res" in ours:
                early = (moe and "shared" in ours) or self.hasty
                if row is not None:
                    x = layer.behind.collect(prefix, row, bank, early)
                else:
                    x = layer.behind(prefix, delta, bank, early)
            else:
                x, prefix, _ = module._post_attn_norm(delta, bank, prefix)
            columns = None
            if layer.moe is not None and moe and "tail" in ours and layer is not self._layers[-1]:
                columns = self._boxes.columns
                layer.moe.send(x, rows)
            elif layer.moe is not None and moe:
                delta = layer.moe(x, rows, "shared" in ours, "latent_up" in ours)
            else:
                delta = module.mlp(x) if steps is not None else x
        last = self.backbone
        out: Tensor = self._last_site(
            prefix, delta, bank, last.output_attn_res_norm.weight,
            last.output_attn_res_proj.weight.squeeze(0), None, num_blocks=self._blocks,
            block_write_idx=-1, eps=last.output_attn_res_norm.variance_epsilon, output_norm_eps=0.0,
        )  # fmt: skip
        return out

    def _places(
        self, steps: Mapping[str, Any] | None, batch: int, ours: Collection[Op]
    ) -> dict[str, Any]:
        """Where the rows have their caches, for layers whose attention is ours: slots int32 [B] of
        a KDA layer, `Pages` of an MLA layer; nobody's without metadata. Ahead of the first layer,
        so that no conversion stands between launches that may overlap."""
        found: dict[str, Any] = {}
        narrow: dict[int, Tensor] = {}
        for layer in self._layers:
            if layer.half is None or layer.kind not in ours:
                continue
            name, kda = layer.prefix, layer.kind == "kda"
            if steps is None and kda:
                found[name] = torch.zeros(batch, dtype=torch.int32, device=self.device)
            elif steps is None:
                found[name] = Pages.nobodys(batch, self.widths[name], self.device)
            elif kda:
                found[name] = steps[name].non_spec_state_indices_tensor[:batch]
            else:
                mapping: Any = get_forward_context().slot_mapping
                wide, told = mapping[name], steps[name].decode
                # Layers of one group share the mapping: one conversion a step.
                at = wide.data_ptr()
                if at not in narrow:
                    narrow[at] = wide[:batch].to(torch.int32)
                found[name] = Pages(narrow[at], told.block_table, told.seq_lens)
        return found

    @property
    def _boxes(self) -> Mailboxes:
        """There whenever the table has an op that needs them."""
        assert self._ranks.boxes is not None
        return self._ranks.boxes

    @torch.inference_mode()
    def prepare(self, widths: Mapping[str, int]) -> None:
        """Compile every launch of every batch and make each once, so that nothing is compiled,
        loaded or allocated for good while a graph is captured. Called with caches bound: their
        pages are part of the code. `widths`: pages a request may have, by layer."""
        self.widths = widths
        self.capture.captured.clear()
        for _ in range(2 if self._ranks.size > 1 else 1):
            # The first time another rank may compile for longer than this one waits.
            self._ranks.restart()
            for batch in self.capture.ours:
                self._launch(batch)
        torch.cuda.synchronize(self.device)
        self.check()

    def _launch(self, batch: int) -> None:
        hidden = self.backbone.config.hidden_size
        embedded = torch.zeros(batch, hidden, dtype=torch.bfloat16, device=self.device)
        positions = torch.zeros(batch, dtype=torch.int64, device=self.device)
        nobody = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._run(embedded, positions, None, nobody)

    def noticed(self) -> None:
        """Raises `PeerLostError` if an earlier step is known to have waited in vain; waits for
        nothing."""
        self._ranks.check()

    def given(self) -> None:
        """The engine is about to replay a graph of ours."""
        if self._ranks.watch is not None:
            self._ranks.watch.given()

    def check(self) -> None:
        """Wait for the device; raises `PeerLostError` if a launch waited in vain."""
        self._shared.front.check()
        self._ranks.wait()
