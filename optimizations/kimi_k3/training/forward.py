"""The decoder over a rectangle of rows, differentiable: ids [B, L] in, logits [B, L, vocab] out.

Owns: the batched forms that training needs of delta rule, attention and experts. Everything
pointwise in tokens is the reference's own code, which takes any leading axes; so are the order of
layers and of residual sites. The function is the reference decoder's: a test holds them together.

Matrix products follow autocast; routing, decay and state maths stay in FP32 (or FP64 if given so).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kimi_k3.dims import Dims
from kimi_k3.reference import attn_res, kda, mla
from kimi_k3.reference.basic import linear, mlp, rms_norm, situ
from kimi_k3.reference.moe import WEIGHT_SUM_EPS
from kimi_k3.reference.weights import LM_HEAD, MODEL, Scope, layer_prefix
from kimi_k3.training.delta import delta_rule

Own = dict[str, Tensor]
"""Weights of one layer's part by their names inside it."""


class Decoder:
    """Weights by stacked names and the functions over them, each compiled once if asked."""

    def __init__(self, dims: Dims, weights: Mapping[str, Tensor], compiled: bool = False) -> None:
        """Keep `weights` by reference: whoever changes them in place changes the decoder."""
        self.dims = dims
        self.weights = dict(weights)
        if compiled:
            # Shapes are few and fixed, but a residual site is another graph for each bank.
            torch._dynamo.config.recompile_limit = 64
        wrap: Callable[[Any], Any] = (
            partial(torch.compile, dynamic=False, fullgraph=True) if compiled else _as_is
        )
        self._kda, self._mla, self._moe = wrap(_kda), wrap(_mla), wrap(_moe)
        self._mlp, self._site = wrap(_mlp), wrap(_site)
        self._loss = wrap(_loss)
        self._parts = {
            prefix: {
                name.removeprefix(prefix): tensor
                for name, tensor in self.weights.items()
                if name.startswith(prefix)
            }
            for layer in range(dims.layers)
            for prefix in (layer_prefix(layer), *_modules(dims, layer))
        }

    def hidden(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids [B, L] -> final normalised hidden [B * L, hidden], load [MoE layers, experts].

        The load is each expert's share of the tokens, times the number of experts over top-k.
        Between layers rows are flat: what is pointwise in tokens then compiles once for all L.
        """
        dims, rows = self.dims, ids.shape[0]
        prefix = self.weights[MODEL + "embed_tokens.weight"][ids.flatten()]
        delta = None
        bank: tuple[Tensor, ...] = ()
        loads = []
        for layer in range(dims.layers):
            own = self._parts[layer_prefix(layer)]
            attention, feed = (self._parts[name] for name in _modules(dims, layer))
            writes = dims.block_write(layer) is not None
            at = self._mixed(own, "self_attention_res", "input_layernorm", prefix, delta, bank)
            if writes:
                bank = (*bank, at.prefix)
            attend = self._kda if dims.layer_kinds[layer] == "kda" else self._mla
            output = attend(attention, dims, at.output, rows)
            prefix, delta = (output, None) if writes else (at.prefix, output)
            at = self._mixed(own, "mlp_res", "post_attention_layernorm", prefix, delta, bank)
            prefix = at.prefix
            if layer in dims.moe_layers:
                delta, load = self._moe(feed, dims, at.output)
                loads.append(load)
            else:
                delta = self._mlp(feed, dims, at.output)
        own = {
            name.removeprefix(MODEL): tensor
            for name, tensor in self.weights.items()
            if name.startswith((MODEL + "output_", MODEL + "norm"))
        }
        output = self._mixed(own, "output_attn_res", "norm", prefix, delta, bank).output
        return output, torch.stack(loads)

    def logits(self, ids: Tensor) -> Tensor:
        """ids [B, L] -> [B, L, vocab]. L must be a multiple of the delta rule's chunk."""
        return linear(self.hidden(ids)[0], self.weights[LM_HEAD]).view(*ids.shape, -1)

    def loss(self, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(mean loss in nats, share of targets predicted, expert load).

        ids [B, L + 1] int64, weight [B, L] of each target ids[:, 1:].
        """
        hidden, load = self.hidden(ids[:, :-1])
        target, weight = ids[:, 1:].flatten(), weight.flatten()
        loss, right = self._loss(hidden, self.weights[LM_HEAD], target, weight)
        return loss, right, load

    def _mixed(
        self,
        own: Own,
        name: str,
        norm: str,
        prefix: Tensor,
        delta: Tensor | None,
        bank: tuple[Tensor, ...],
    ) -> attn_res.Site:
        gains = (own[f"{name}_norm.weight"], own[f"{name}_proj.weight"], own[f"{norm}.weight"])
        output, prefix = self._site(prefix, delta, bank, *gains, self.dims.eps)
        return attn_res.Site(output, prefix, bank)


def _as_is(function: Any) -> Any:
    return function


def _modules(dims: Dims, layer: int) -> tuple[str, str]:
    feed = "block_sparse_moe." if layer in dims.moe_layers else "mlp."
    return layer_prefix(layer) + "self_attn.", layer_prefix(layer) + feed


def _site(
    prefix: Tensor,
    delta: Tensor | None,
    bank: tuple[Tensor, ...],
    gain: Tensor,
    query: Tensor,
    out_gain: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    at = attn_res.site(prefix, delta, bank, False, gain, query, out_gain, eps)
    return at.output, at.prefix


def _mlp(own: Own, dims: Dims, x: Tensor) -> Tensor:
    return mlp(own, dims, x)


def _wide(tensor: Tensor) -> Tensor:
    """At least FP32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _kda(own: Own, dims: Dims, x: Tensor, rows: int) -> Tensor:
    """x [rows * L, hidden], as result."""
    x = x.unflatten(0, (rows, -1))
    projected = kda.project(own, dims, x)
    filters = kda.conv_weight(own)  # [C, taps]
    length = x.shape[1]
    padded = functional.pad(_wide(projected.qkv), (0, 0, dims.conv - 1, 0))
    # A sum of shifted products: as a grouped convolution its gradient would be the slowest part.
    taps = [padded[:, tap : tap + length] * filters[:, tap] for tap in range(dims.conv)]
    convolved = torch.stack(taps).sum(0)
    q, k, v = kda.normalise(convolved, dims)
    with torch.autocast(x.device.type, enabled=False):
        o = delta_rule(q, k, v, _wide(projected.log_decay), _wide(projected.beta))
    return kda.finish(own, o, projected.gate).flatten(0, 1)


def _mla(own: Own, dims: Dims, x: Tensor, rows: int) -> Tensor:
    """x [rows * L, hidden], as result."""
    x = x.unflatten(0, (rows, -1))
    latent, shared = mla.cache_rows(own, dims, x).split([dims.kv_lora, dims.rope], -1)
    joint = linear(latent, own["kv_b_proj.weight"])
    joint = joint.view(*x.shape[:-1], dims.mla_heads, dims.nope + dims.v_head_dim)
    keys, values = joint.split([dims.nope, dims.v_head_dim], -1)
    shared = shared.to(keys.dtype).unsqueeze(-2).expand(*keys.shape[:-1], -1)
    keys = torch.cat((keys, shared), -1)
    query = mla.queries(own, dims, x).to(keys.dtype)
    # Fused attention wants values as wide as keys.
    values = functional.pad(values, (0, dims.qk_head_dim - dims.v_head_dim))
    o = functional.scaled_dot_product_attention(
        query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
    )
    return mla.finish(own, x, o.transpose(1, 2)[..., : dims.v_head_dim]).flatten(0, 1)


def _moe(own: Own, dims: Dims, x: Tensor) -> tuple[Tensor, Tensor]:
    """Every expert on every token, the ones not chosen times zero: one wide MLP."""
    with torch.autocast(x.device.type, enabled=False):
        score = torch.sigmoid(linear(_wide(x), own["gate.weight"]))
        keys = score.detach() + own["gate.e_score_correction_bias"]
        chosen = torch.zeros_like(score).scatter(-1, keys.topk(dims.top_k, -1).indices, 1.0)
        share = score * chosen
        share = share / (share.sum(-1, keepdim=True) + WEIGHT_SUM_EPS) * dims.routed_scaling
        load = chosen.mean(0) * (dims.experts / dims.top_k)
    z = linear(x, own["routed_expert_down_proj.weight"])
    gate = linear(z, own["experts.w1.weight"].flatten(0, 1))
    up = linear(z, own["experts.w3.weight"].flatten(0, 1))
    inner = situ(gate, up, dims.situ_beta, dims.situ_linear_beta)
    inner = inner.unflatten(-1, (dims.experts, -1)) * share.to(inner.dtype).unsqueeze(-1)
    down = own["experts.w2.weight"].transpose(0, 1).flatten(1)  # [latent, experts * inter]
    total = _wide(linear(inner.flatten(-2), down))
    normed = rms_norm(total, own["routed_expert_norm.weight"], dims.eps)
    routed = linear(normed, own["routed_expert_up_proj.weight"])
    return routed + mlp(Scope(own, "shared_experts."), dims, x), load


def _loss(hidden: Tensor, head: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    logits = _wide(linear(hidden, head))
    each = functional.cross_entropy(logits, target, reduction="none")
    total = weight.sum().clamp(min=1.0)
    right = ((logits.argmax(-1) == target) * weight).sum() / total
    return (each * weight).sum() / total, right
