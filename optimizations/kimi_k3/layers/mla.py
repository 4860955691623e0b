"""Multi-head latent attention without rotation, absorbed form, over a paged latent cache.

Owns: the layer on vLLM's parallel layers and its rows in vLLM's cache. Does not own: tiles and
flat cache rows (`layers.layout`). Source: DeepSeek-V2 report (arXiv 2405.04434), section 2.1, for
the latent form; Kimi K3 technical report (arXiv 2607.24653), section 2.1, for NoPE and the gate.

A cache row is [normalised latent c | shared key p]. Per head, with W_UK, W_UV the halves of kv_b:
score = (<W_UK^T q_n, c> + <q_p, p>) / sqrt(nope + rope); out = W_UV (softmax-weighted sum of c);
then a sigmoid gate and the output projection. Shapes: T tokens, H rank-local heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from kimi_k3.backend import MLABackend, MLAMetadata
from kimi_k3.dims import Dims
from kimi_k3.layers.common import rms_norm
from kimi_k3.layers.layout import AttentionTile
from kimi_k3.layers.loading import Slots, into, linear, parameter, replicated


def _nothing() -> None:
    """Nobody waits for the cache."""


class MLA(nn.Module, AttentionLayerBase):
    """One MLA layer."""

    def __init__(self, dims: Dims, vllm_config: VllmConfig, prefix: str) -> None:
        """`prefix` names the layer in vLLM's forward context; it holds exactly one number."""
        super().__init__()
        self.dims = dims
        self.prefix = prefix
        tp = get_tensor_model_parallel_world_size()
        self.heads = dims.rank(tp).mla_heads
        self.scale = dims.qk_head_dim**-0.5

        # The gate split over ranks; the latents whole on each.
        values = dims.mla_heads * dims.v_head_dim
        self.in_proj = MergedColumnParallelLinear(
            dims.hidden,
            [values, dims.q_lora * tp, dims.mla_row * tp],
            bias=False,
            prefix=f"{prefix}.in_proj",
        )
        self.q_norm = parameter(dims.q_lora)
        self.kv_norm = parameter(dims.kv_lora)
        self.q_b_proj = ColumnParallelLinear(
            dims.q_lora, dims.mla_heads * dims.qk_head_dim, bias=False, prefix=f"{prefix}.q_b_proj"
        )
        self.o_proj = RowParallelLinear(values, dims.hidden, bias=False, prefix=f"{prefix}.o_proj")
        # Used in halves by batched products, so kept out of vLLM's packed linear layers.
        self.kv_b = parameter(self.heads, dims.nope + dims.v_head_dim, dims.kv_lora)
        self.w_uk = self.w_uv = torch.empty(0)

        self.on_bind: Callable[[], None] = _nothing
        self.kv_cache = torch.empty(0)
        context = vllm_config.compilation_config.static_forward_context
        if prefix in context:
            raise ValueError(f"duplicate layer name {prefix}")
        context[prefix] = self

    # ---- vLLM's cache contract ----------------------------------------------------------------

    def get_attn_backend(self) -> type[Any]:
        """Our own back end."""
        return MLABackend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> MLAAttentionSpec:
        """One latent row per token, no separate values."""
        return MLAAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=1,
            head_size=self.dims.mla_row,
            dtype=vllm_config.model_config.dtype,
        )

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Take the engine's pages, and say so."""
        super().bind_kv_cache(kv_cache)
        self.on_bind()

    @property
    def pages(self) -> Tensor:
        """The cache as [blocks, block, row]; newer engines keep a head axis of one."""
        return self.kv_cache.squeeze(1) if self.kv_cache.dim() == 4 else self.kv_cache

    # ---- weights ------------------------------------------------------------------------------

    def slots(self) -> Slots:
        """Checkpoint names below this module."""
        return {
            "g_proj.weight": linear(self.in_proj, dim=0, part=0),
            "q_a_proj.weight": replicated(self.in_proj, part=1),
            "kv_a_proj_with_mqa.weight": replicated(self.in_proj, part=2),
            "q_a_layernorm.weight": into(self.q_norm),
            "kv_a_layernorm.weight": into(self.kv_norm),
            "q_b_proj.weight": linear(self.q_b_proj, dim=0),
            "kv_b_proj.weight": into(self.kv_b, dim=0),
            "o_proj.weight": linear(self.o_proj, dim=1),
        }

    def finish_loading(self) -> None:
        """Split kv_b into W_UK [H, nope, latent] and W_UV^T [H, latent, v]."""
        w_uk, w_uv = self.kv_b.split([self.dims.nope, self.dims.v_head_dim], dim=1)
        self.w_uk, self.w_uv = w_uk.contiguous(), w_uv.transpose(1, 2).contiguous()

    # ---- forward ------------------------------------------------------------------------------

    def forward(self, x: Tensor, step: MLAMetadata | None) -> Tensor:
        """[T, hidden] to [T, hidden]; `step` None (profile run) touches no cache."""
        dims = self.dims
        tokens = len(x)
        sizes = [self.heads * dims.v_head_dim, dims.q_lora, dims.mla_row]
        gate, low, row = self.in_proj(x)[0].split(sizes, dim=-1)
        q = self.q_b_proj(rms_norm(low, self.q_norm, dims.eps))[0]
        q = q.view(tokens, self.heads, dims.qk_head_dim)
        if step is None:
            out = x.new_zeros(tokens, self.heads * dims.v_head_dim)
        else:
            out = self._attend(q, row, step)
        final: Tensor = self.o_proj((out * torch.sigmoid(gate.float())).to(x.dtype))[0]
        return final

    def _attend(self, q: Tensor, row: Tensor, step: MLAMetadata) -> Tensor:
        """Write this step's rows, then attend over the cache: [T, H * v]."""
        dims = self.dims
        latent = rms_norm(row[:, : dims.kv_lora], self.kv_norm, dims.eps)
        cache = self.pages.view(-1, dims.mla_row)
        written = torch.cat([latent, row[:, dims.kv_lora :]], dim=-1)
        cache.index_copy_(0, step.slot_mapping, written)

        nope, shared = q.split([dims.nope, dims.rope], dim=-1)
        absorbed = torch.bmm(nope.transpose(0, 1), self.w_uk).transpose(0, 1)
        query = torch.cat([absorbed, shared], dim=-1)  # [T, H, row]
        if len(step.tiles) == 1 and step.tiles[0].queries is None:
            mixed = self._tile(query, cache, step.tiles[0])
        else:
            mixed = query.new_empty(len(query), self.heads, dims.kv_lora)
            for tile in step.tiles:
                assert tile.queries is not None
                places = tile.queries
                part = self._tile(query.index_select(0, places), cache, tile)
                if tile.keep is not None:
                    part, places = part[tile.keep], places[tile.keep]
                mixed.index_copy_(0, places, part)
        return torch.bmm(mixed.transpose(0, 1), self.w_uv).transpose(0, 1).flatten(1)

    def _tile(self, query: Tensor, cache: Tensor, tile: AttentionTile) -> Tensor:
        """[pieces * length, H, row] queries to mixed latents [pieces * length, H, latent].

        Heads share the keys, so the heads of all queries of a piece are one side of one GEMM.
        """
        keys = cache.index_select(0, tile.keys.view(-1)).view(*tile.keys.shape, -1)
        flat = query.view(tile.pieces, -1, query.shape[-1])
        scores = torch.bmm(flat, keys.transpose(1, 2)).float().mul_(self.scale)
        if tile.bias is not None:
            shape = (tile.pieces, -1, self.heads, scores.shape[-1])
            scores.view(shape).add_(tile.bias.unsqueeze(2))
        weights = torch.softmax(scores, dim=-1).to(keys.dtype)
        return torch.bmm(weights, keys[..., : self.dims.kv_lora]).view(len(query), self.heads, -1)
