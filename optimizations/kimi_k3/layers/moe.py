"""Latent mixture of experts: router on the full width, experts in a narrow latent space.

Owns: routing, the three ways to run the experts, and their one reduction over ranks.
Source: Kimi K3 technical report (arXiv 2607.24653), section 2; formulas at `LatentMoE`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from vllm.distributed import (
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.model_executor.layers.linear import (
    MergedColumnParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)

from kimi_k3.dims import Dims
from kimi_k3.layers.common import Situ, rms_norm
from kimi_k3.layers.loading import Slots, into, linear, parameter, replicated

# One token: copying its experts' weights together and running them as one is fastest. Up to this
# many (token, expert) pairs, running every expert on every token in two large GEMMs is, as long as
# the experts together are small enough to stream through the cache. Beyond, sorting tokens by
# expert is. Measured on a 2-core AVX-512 machine with 16 experts of 64 x 64, 4 per token.
DENSE_PAIRS = 768
DENSE_WEIGHT_ELEMENTS = 1 << 20


class LatentMoE(nn.Module):
    """Routed experts in the latent space plus a shared MLP on the full hidden size.

    s = sigmoid(W_g x), FP32 logits; chosen = top-k of s + bias; w = s / sum of chosen s * scaling;
    r = sum_e w_e W2_e SiTU(W1_e z, W3_e z) with z = W_down x; out = W_up RMS(r) + shared(x).
    r is summed over ranks before the norm. Experts are split over ranks by their inner width.
    """

    def __init__(self, dims: Dims, prefix: str) -> None:
        """Allocate rank-local parameters; `prefix` names the module."""
        super().__init__()
        self.dims = dims
        self.tp = get_tensor_model_parallel_world_size()
        inter = dims.rank(self.tp).expert_inter
        # A BF16 gate converts to FP32 exactly, so an FP32 copy gives FP32 logits at any dtype.
        self.gate = ReplicatedLinear(
            dims.hidden,
            dims.experts,
            bias=False,
            params_dtype=torch.float32,
            prefix=f"{prefix}.gate",
        )
        self.bias = parameter(dims.experts, dtype=torch.float32)
        # The shared MLP's gate and up split over ranks; the way into the latent space whole.
        shared = dims.shared_inter
        self.in_proj = MergedColumnParallelLinear(
            dims.hidden,
            [shared, shared, dims.latent * self.tp],
            bias=False,
            prefix=f"{prefix}.in_proj",
        )
        self.shared_act = Situ(dims, shared // self.tp)
        self.shared_down = RowParallelLinear(
            shared,
            dims.hidden,
            bias=False,
            reduce_results=False,
            prefix=f"{prefix}.shared_down",
        )
        self.up = ReplicatedLinear(dims.latent, dims.hidden, bias=False, prefix=f"{prefix}.up")
        self.norm = parameter(dims.latent)
        # [expert, gate rows then up rows, latent] and, transposed on load, [expert, inner, latent]:
        # both forms below then read them as they lie.
        self.w13 = parameter(dims.experts, 2 * inter, dims.latent)
        self.w2 = parameter(dims.experts, inter, dims.latent)
        self.act = Situ(dims, inter)
        small = self.w13.numel() + self.w2.numel() <= DENSE_WEIGHT_ELEMENTS
        self.dense_tokens = DENSE_PAIRS // dims.experts if small else 0

    def slots(self) -> Slots:
        """Checkpoint names below this module."""
        inter = self.w2.shape[1]
        found = {
            "gate.weight": linear(self.gate),
            "gate.e_score_correction_bias": into(self.bias),
            "routed_expert_down_proj.weight": replicated(self.in_proj, part=2),
            "routed_expert_norm.weight": into(self.norm),
            "routed_expert_up_proj.weight": linear(self.up),
            "shared_experts.gate_proj.weight": linear(self.in_proj, dim=0, part=0),
            "shared_experts.up_proj.weight": linear(self.in_proj, dim=0, part=1),
            "shared_experts.down_proj.weight": linear(self.shared_down, dim=1),
        }
        for expert in range(self.dims.experts):
            name = f"experts.{expert}."
            found[name + "w1.weight"] = into(self.w13.data[expert, :inter], dim=0)
            found[name + "w3.weight"] = into(self.w13.data[expert, inter:], dim=0)
            found[name + "w2.weight"] = into(self.w2.data[expert].t(), dim=1)
        return found

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Chosen experts int64 [T, k] and their weights FP32 [T, k]."""
        scores = torch.sigmoid(self.gate(x.float())[0])
        chosen = torch.topk(scores + self.bias, self.dims.top_k, dim=-1, sorted=False).indices
        weights = scores.gather(1, chosen)
        total = weights.sum(-1, keepdim=True).add_(1e-20)
        if self.dims.routed_scaling != 1.0:
            total.div_(self.dims.routed_scaling)
        return chosen, weights.div_(total)

    def _gathered(self, z: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The chosen experts of one token, side by side as one expert."""
        experts = chosen[0]
        w13 = self.w13.index_select(0, experts).flatten(0, 1)
        inner = self.act(torch.mm(z, w13.t()).view(self.dims.top_k, -1))
        inner = inner.float().mul_(weights.t()).to(z.dtype)
        return torch.mm(inner.view(1, -1), self.w2.index_select(0, experts).flatten(0, 1))

    def _dense(self, z: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Every expert on every token; unchosen ones weigh zero."""
        tokens, experts = z.shape[0], self.dims.experts
        inner = self.act(torch.mm(z, self.w13.flatten(0, 1).t()).view(tokens, experts, -1))
        full = torch.zeros(tokens, experts, dtype=weights.dtype, device=z.device)
        inner = inner.float().mul_(full.scatter_(1, chosen, weights).unsqueeze(-1)).to(z.dtype)
        return torch.mm(inner.flatten(1), self.w2.flatten(0, 1))

    def _grouped(self, z: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Tokens sorted by expert, one grouped GEMM per weight."""
        pairs = chosen.flatten()
        order = torch.argsort(pairs)
        ends = torch.bincount(pairs, minlength=self.dims.experts).cumsum(0).to(torch.int32)
        rows = z.index_select(0, order.div(self.dims.top_k, rounding_mode="floor"))
        inner = self.act(nn.functional.grouped_mm(rows, self.w13.transpose(1, 2), offs=ends))
        grouped = nn.functional.grouped_mm(inner, self.w2, offs=ends)
        out = torch.empty_like(grouped).index_copy_(0, order, grouped)
        scaled = out.view(*chosen.shape, -1).float().mul_(weights.unsqueeze(-1))
        return scaled.sum(1).to(z.dtype)

    def _experts(self, z: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Latents [T, latent] through their experts, weighted and summed: [T, latent]."""
        if len(z) == 1:
            return self._gathered(z, chosen, weights)
        if len(z) <= self.dense_tokens:
            return self._dense(z, chosen, weights)
        return self._grouped(z, chosen, weights)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] to [T, hidden]."""
        chosen, weights = self.route(x)
        sizes = [2 * self.shared_act.width, self.dims.latent]
        gate_up, z = self.in_proj(x)[0].split(sizes, dim=-1)
        routed = self._experts(z, chosen, weights)
        shared: Tensor = self.shared_down(self.shared_act(gate_up))[0]
        if self.tp > 1:  # one exchange for both sums
            both = tensor_model_parallel_all_reduce(torch.cat([routed, shared], dim=-1))
            routed, shared = both.split([self.dims.latent, self.dims.hidden], dim=-1)
        out: Tensor = self.up(rms_norm(routed, self.norm, self.dims.eps))[0]
        return out + shared
