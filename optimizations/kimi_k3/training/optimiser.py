"""Muon for the hidden matrices, AdamW for the rest, and the experts' balance.

Owns: one update of all weights, as tensor operations only, so that it can be captured in a CUDA
graph with the step it belongs to. Matrices of one shape are updated as one batch.

Sources: Muon, Jordan et al. 2024 (kellerjordan.github.io/posts/muon), with the update scale of
Moonlight (arXiv 2502.16982), which makes one learning rate serve both rules; bias update without
auxiliary loss: DeepSeek-V3 technical report (arXiv 2412.19437), section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kimi_k3.reference.weights import LM_HEAD
from kimi_k3.training.weights import BIAS

MOMENTUM = 0.95
BETAS = (0.9, 0.98)
EPS = 1e-8
DECAY = 0.05
"""Weight decay of matrices, per unit of learning rate."""
CLIP = 1.0
"""Largest norm of the gradient of all AdamW tensors together; Muon's update has none."""
MUON_SCALE = 0.2
"""Root mean square of a Muon update per unit of learning rate: that of AdamW's in practice."""
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Optimiser:
    """State of both rules for `weights`, updated in place by `step`."""

    def __init__(self, weights: Mapping[str, Tensor], balance: float = 1e-3) -> None:
        """`balance` is how far an expert's bias moves per step against its load."""
        self._balance = balance
        self._biases = [weights[name] for name in weights if name.endswith(BIAS)]
        trained = {name: tensor for name, tensor in weights.items() if not name.endswith(BIAS)}
        groups: dict[tuple[int, ...], list[Tensor]] = {}
        for name, tensor in trained.items():
            if by_muon(name, tensor):
                groups.setdefault(tuple(tensor.shape[-2:]), []).append(tensor)
        self._matrices = list(groups.values())
        self._momentum = [
            torch.zeros_like(torch.cat([_as_batch(t) for t in group])) for group in self._matrices
        ]
        self._others = [t for name, t in trained.items() if not by_muon(name, t)]
        self._decays = [DECAY if t.dim() > 1 else 0.0 for t in self._others]
        self._first = [torch.zeros_like(t) for t in self._others]
        self._second = [torch.zeros_like(t) for t in self._others]
        self._count = torch.zeros((), device=self._others[0].device)

    def state(self) -> dict[str, list[Tensor]]:
        """Every tensor that carries over from step to step, for saving and loading."""
        return {
            "momentum": self._momentum,
            "first": self._first,
            "second": self._second,
            "count": [self._count],
        }

    @torch.no_grad()
    def step(self, rate: Tensor, load: Tensor) -> None:
        """One update at learning rate `rate` (a scalar tensor) from the gradients in place.

        `load` [MoE layers, experts] as `forward.Decoder.hidden` gives it.
        """
        for group, momentum in zip(self._matrices, self._momentum, strict=True):
            self._muon(group, momentum, rate)
        self._adam(rate)
        for bias, share in zip(self._biases, load, strict=True):
            bias.add_(torch.sign(1.0 - share), alpha=self._balance)

    def _muon(self, group: list[Tensor], momentum: Tensor, rate: Tensor) -> None:
        gradient = torch.cat([_as_batch(_gradient(t)) for t in group])
        momentum.lerp_(gradient, 1.0 - MOMENTUM)
        update = orthogonal(gradient.lerp(momentum, MOMENTUM))  # Nesterov
        scale = MUON_SCALE * max(update.shape[-2:]) ** 0.5
        parts = update.split([_as_batch(t).shape[0] for t in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.mul_(1.0 - rate * DECAY).sub_(part.view_as(tensor) * (rate * scale))

    def _adam(self, rate: Tensor) -> None:
        gradients = [_gradient(t) for t in self._others]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        torch._foreach_mul_(gradients, (CLIP / (norm + 1e-6)).clamp(max=1.0))
        torch._foreach_lerp_(self._first, gradients, 1.0 - BETAS[0])
        torch._foreach_mul_(self._second, BETAS[1])
        torch._foreach_addcmul_(self._second, gradients, gradients, 1.0 - BETAS[1])
        self._count.add_(1.0)
        unbiased = ((1.0 - BETAS[1] ** self._count).sqrt()) / (1.0 - BETAS[0] ** self._count)
        update = torch._foreach_sqrt(self._second)
        torch._foreach_add_(update, EPS)
        update = torch._foreach_div(self._first, update)
        torch._foreach_mul_(update, unbiased)
        torch._foreach_add_(update, torch._foreach_mul(self._others, self._decays))
        torch._foreach_mul_(update, rate)
        torch._foreach_sub_(self._others, update)


def by_muon(name: str, tensor: Tensor) -> bool:
    """Whether a weight is a hidden matrix: no embedding, head, router, filter or thin matrix."""
    if name == LM_HEAD or name.endswith(("embed_tokens.weight", "gate.weight", "conv1d.weight")):
        return False
    return tensor.dim() >= 2 and min(tensor.shape[-2:]) >= 16


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices [N, a, b], approximately, by Newton-Schulz iterations."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    wide = x.shape[-1] >= x.shape[-2]
    x = x if wide else x.transpose(-1, -2)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True).to(x.dtype) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x if wide else x.transpose(-1, -2)).to(matrices.dtype)


def _as_batch(tensor: Tensor) -> Tensor:
    return tensor.view(-1, *tensor.shape[-2:])


def _gradient(tensor: Tensor) -> Tensor:
    # The first residual site mixes nothing, so that its weights have no part in the output.
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
