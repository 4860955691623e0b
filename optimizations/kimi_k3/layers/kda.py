"""Kimi delta attention: gated delta rule with a decay per key channel, behind short convolutions.

Owns: the layer on vLLM's parallel layers, its state in vLLM's cache, decode and verification
steps. Prefill's chunked form is `layers.kda_chunk`. Does not own: row split and slots (`backend`).
Source: Kimi K3 technical report (arXiv 2607.24653), section 2.1, and the Kimi Linear report
(arXiv 2510.26692), section 3; the recurrence is repeated at `recur`.

Shapes: T tokens, R rows, H rank-local heads, D = V = K head width, C = 3 * H * D channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from kimi_k3.backend import KDABackend, KDAMetadata
from kimi_k3.dims import Dims
from kimi_k3.layers.common import rms_norm
from kimi_k3.layers.kda_chunk import chunk_scan
from kimi_k3.layers.loading import Slots, into, linear, parameter, replicated

L2_EPS = 1e-6
OUTPUT_NORM_EPS = 1e-5


def recur(state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """One token per row, updating `state` in place; returns the outputs [R, H, D].

    S <- S diag(decay); u = beta (v - S k); S <- S + u k^T; out = S q.
    `state` [R, H, V, K] FP32 contiguous; q, k, v, decay [R, H, D]; beta [R, H].
    """
    rows, heads, width = v.shape
    flat = state.mul_(decay.unsqueeze(-2)).view(rows * heads, width, width)
    key = k.reshape(-1, width, 1)
    missing = v - torch.bmm(flat, key).view_as(v)
    u = missing.mul_(beta.unsqueeze(-1)).view(-1, width, 1)
    flat.baddbmm_(u, key.transpose(1, 2))
    return torch.bmm(flat, q.reshape(-1, width, 1)).view_as(v)


def _pick(tensor: Tensor, places: Tensor | None) -> Tensor:
    return tensor if places is None else tensor.index_select(0, places)


def _clear(history: Tensor, state: Tensor, fresh: Tensor) -> None:
    """Zero the states of new requests: their slots hold what the last owners left, even NaN."""
    history.masked_fill_(fresh.view(-1, 1, 1), 0.0)
    state.masked_fill_(fresh.view(-1, 1, 1, 1), 0.0)


def _nothing() -> None:
    """Nobody waits for the cache."""


class KDA(nn.Module, MambaBase):
    """One KDA layer."""

    l2_scale: Tensor
    l2_offset: Tensor

    def __init__(self, dims: Dims, vllm_config: VllmConfig, prefix: str) -> None:
        """`prefix` names the layer in vLLM's forward context; it holds exactly one number."""
        super().__init__()
        self.dims = dims
        self.prefix = prefix
        self.tp = get_tensor_model_parallel_world_size()
        self.heads = dims.rank(self.tp).kda_heads
        self.head = dims.kda_head_dim
        self.width = self.heads * self.head

        full = dims.kda_width
        # q, k, v, gate, beta split over ranks; the decay's inner projection whole on each.
        self.in_proj = MergedColumnParallelLinear(
            dims.hidden,
            [*[full] * 4, dims.kda_heads, dims.decay_rank * self.tp],
            bias=False,
            prefix=f"{prefix}.in_proj",
        )
        self.f_b_proj = ColumnParallelLinear(
            dims.decay_rank, full, bias=False, prefix=f"{prefix}.f_b_proj"
        )
        self.o_proj = RowParallelLinear(full, dims.hidden, bias=False, prefix=f"{prefix}.o_proj")
        self.conv = parameter(3 * self.width, dims.conv, dtype=torch.float32)
        self.a_log = parameter(self.heads, dtype=torch.float32)
        self.dt_bias = parameter(self.width, dtype=torch.float32)
        self.o_norm = parameter(self.head)
        # Formed once after loading.
        self.taps = self.decay_gain = self.decay_bias = self.o_gain = torch.empty(0)
        # 1 / sqrt(sum q^2 + eps) / sqrt(D) for q, without the last factor for k, in one operator.
        scale = torch.tensor([float(self.head), 1.0]).view(2, 1, 1)
        self.register_buffer("l2_scale", scale, persistent=False)
        self.register_buffer("l2_offset", scale * L2_EPS, persistent=False)

        self.on_bind: Callable[[], None] = _nothing
        self.kv_cache: tuple[Tensor, ...] = (torch.empty(0), torch.empty(0))
        context = vllm_config.compilation_config.static_forward_context
        if prefix in context:
            raise ValueError(f"duplicate layer name {prefix}")
        context[prefix] = self

    # ---- vLLM's state contract ----------------------------------------------------------------

    def get_state_shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Convolution history [taps before now, C] and delta-rule state [H, V, K]."""
        return self.dims.conv_state_shape(self.tp), self.dims.recurrent_state_shape(self.tp)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """FP32 at every model dtype: the recurrence accumulates over the whole context."""
        return torch.float32, torch.float32

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        """The closest kind vLLM knows; only names the cache group."""
        return MambaAttentionBackendEnum.GDN_ATTN

    def get_attn_backend(self) -> type[Any]:
        """Our own back end."""
        return KDABackend

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Convolution histories [slots, taps before now, C] and states [slots, H, V, K]."""
        convs, states = self.kv_cache
        return convs, states

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """Take the states' views of the engine's pages, and say so."""
        super().bind_kv_cache(kv_cache)
        self.on_bind()

    # ---- weights ------------------------------------------------------------------------------

    def slots(self) -> Slots:
        """Checkpoint names below this module."""
        merged = ("q", "k", "v", "g", "b")
        found = {
            f"{name}_proj.weight": linear(self.in_proj, dim=0, part=part)
            for part, name in enumerate(merged)
        }
        for part, name in enumerate("qkv"):
            rows = slice(part * self.width, (part + 1) * self.width)
            found[f"{name}_conv1d.weight"] = into(self.conv.data[rows], dim=0)
        return found | {
            "f_a_proj.weight": replicated(self.in_proj, part=len(merged)),
            "f_b_proj.weight": linear(self.f_b_proj, dim=0),
            "o_proj.weight": linear(self.o_proj, dim=1),
            "A_log": into(self.a_log, dim=0),
            "dt_bias": into(self.dt_bias, dim=0),
            "o_norm.weight": into(self.o_norm),
        }

    def finish_loading(self) -> None:
        """Precompute what every step would otherwise repeat."""
        self.taps = self.conv.t().contiguous()
        self.decay_gain = self.a_log.exp().repeat_interleave(self.head)
        self.decay_bias = self.decay_gain * self.dt_bias
        self.o_gain = self.o_norm.float()

    # ---- forward ------------------------------------------------------------------------------

    def forward(self, x: Tensor, step: KDAMetadata | None) -> Tensor:
        """[T, hidden] to [T, hidden]; `step` None (profile run) touches no state."""
        projected = self.in_proj(x)[0]
        sizes = [3 * self.width, self.width, self.heads, self.dims.decay_rank]
        qkv, gate, beta, decay = projected.split(sizes, dim=-1)
        decay = self.f_b_proj(decay)[0].float()
        # lower bound * sigmoid(exp(A_log) * (decay + dt_bias)): the log of the decay.
        decay = torch.addcmul(self.decay_bias, decay, self.decay_gain).sigmoid_()
        decay = decay.mul_(self.dims.gate_lower_bound).view(-1, self.heads, self.head)
        if step is None:
            core = torch.zeros_like(decay)
        else:
            core = self._core(qkv.float(), decay, torch.sigmoid(beta.float()), step)
        normed = rms_norm(core, self.o_gain, OUTPUT_NORM_EPS).flatten(1)
        out: Tensor = self.o_proj(normed.mul_(torch.sigmoid(gate.float())).to(x.dtype))[0]
        return out

    def _core(self, qkv: Tensor, decay: Tensor, beta: Tensor, step: KDAMetadata) -> Tensor:
        """Convolution to delta rule for all rows, FP32: [T, H, D]."""
        parts = len(step.rounds) + (step.chunks is not None)
        out = torch.empty_like(decay) if parts > 1 else None
        if step.rounds:
            out = self._short(qkv, decay, beta, step, out)
        if step.chunks is not None:
            out = self._long(qkv, decay, beta, step, out)
        assert out is not None
        return out

    def _activate(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """SiLU, head split, unit-length q and k, q scaled by D^-1/2: each [..., H, D]."""
        active = nn.functional.silu(convolved, inplace=True)
        qk, v = active.split([2 * self.width, self.width], dim=-1)
        qk = qk.view(*qk.shape[:-1], 2, self.heads, self.head)
        squares = qk.square().sum(-1, keepdim=True)
        qk = qk * torch.addcmul(self.l2_offset, squares, self.l2_scale).rsqrt_()
        q, k = qk.unbind(-3)
        return q, k, v.view(*v.shape[:-1], self.heads, self.head)

    def _advance(
        self, history: Tensor, state: Tensor, qkv: Tensor, decay: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One token per row: outputs [R, H, D] and the new history; `state` in place."""
        window = torch.cat([history, qkv.unsqueeze(1)], dim=1)
        q, k, v = self._activate((window * self.taps).sum(1))
        return recur(state, q, k, v, decay.exp(), beta), window[:, 1:]

    def _short(
        self,
        qkv: Tensor,
        decay: Tensor,
        beta: Tensor,
        step: KDAMetadata,
        out: Tensor | None,
    ) -> Tensor:
        """Decodes and verifications: one token of every short row per round."""
        convs, states = self.states
        history, state = convs.index_select(0, step.live), states.index_select(0, step.live)
        if step.fresh is not None:
            _clear(history, state, step.fresh)
        for round_, target in zip(step.rounds, step.targets, strict=True):
            rows, tokens = round_.rows, round_.tokens
            some = _pick(state, rows)
            result, moved = self._advance(
                _pick(history, rows),
                some,
                _pick(qkv, tokens),
                _pick(decay, tokens),
                _pick(beta, tokens),
            )
            convs.index_copy_(0, target, moved)
            states.index_copy_(0, target, some)
            if rows is None:
                history = moved
            else:
                history.index_copy_(0, rows, moved)
                state.index_copy_(0, rows, some)
            if tokens is None or out is None:
                return result
            out.index_copy_(0, tokens, result)
        assert out is not None
        return out

    def _long(
        self,
        qkv: Tensor,
        decay: Tensor,
        beta: Tensor,
        step: KDAMetadata,
        out: Tensor | None,
    ) -> Tensor:
        """Prompts, whole rows at once: convolution over rows laid end to end, then the scan."""
        layout = step.chunks
        assert layout is not None
        qkv, decay, beta = (_pick(one, step.long_tokens) for one in (qkv, decay, beta))
        convs, states = self.states
        slots = step.ends[layout.order]
        history, state = convs.index_select(0, slots), states.index_select(0, slots)
        _clear(history, state, layout.fresh)

        back = self.dims.conv - 1
        line = qkv.new_empty(len(qkv) + len(layout.history), qkv.shape[1])
        line.index_copy_(0, layout.taps, qkv)
        line.index_copy_(0, layout.history, history.flatten(0, 1))
        convs.index_copy_(0, slots, line.index_select(0, layout.tail).view_as(history))
        reach = len(line) - back
        convolved = line[:reach] * self.taps[0]
        for tap in range(1, back + 1):
            convolved.addcmul_(line[tap : tap + reach], self.taps[tap])
        q, k, v = self._activate(convolved.index_select(0, layout.taps - back))

        result, state = chunk_scan(q, k, v, decay, beta, state, layout)
        states.index_copy_(0, slots, state)
        if step.long_tokens is None or out is None:
            return result
        return out.index_copy_(0, step.long_tokens, result)
