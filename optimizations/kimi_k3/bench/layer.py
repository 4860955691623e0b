"""What the benchmark launches of whole layers: one rank of eight, layers behind each other.

Owns: buffers, our launches, the least bytes. Six layers of eight have Kimi delta attention, two
latent attention over a short context. Every weight but the experts' is a layer's own, and every
layer takes experts of its own out of the 896 of `moe.weights_repacked`, as vLLM's back end has them
and as they are read inside vLLM, or of `moe.weights`. Exchanges are looped back: traffic
is that of one rank, and nobody is late. Reads `ops`, `mla`, `moe`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.bench import mla, moe
from kimi_k3.bench.ops import HIDDEN, MAPS, Heads, Residual, Work, random, state_bytes
from kimi_k3.bench.timing import Call
from kimi_k3.kernels.gpu import Bound
from kimi_k3.kernels.moe import launch
from kimi_k3.kernels.moe.inbox import inbox
from kimi_k3.kernels.moe.launch import EXPERTS, TOP_K
from kimi_k3.kernels.projection.launch import projection

KINDS = "KKKLKKKL"
"""Layers of a chain: Kimi delta attention, or latent attention."""
CONTEXT = 64
"""Tokens a request of the latent layers has."""
FEW = 8
"""Below this batch two chains are one graph, so that its weights are not found in L2."""
Part = tuple[list[Call], float]
"""Launches, and the bytes of weights and states they must move."""


class Mixture:
    """The expert halves of a chain."""

    def __init__(self, batch: int, sources: int, site: Residual, in_place: bool) -> None:
        self.front = moe.Front(batch, site.y)
        self.tail = moe.Tail(batch, sources, site, self.front.active)
        self.kernel = launch.repacked_experts(batch) if in_place else launch.experts(batch)
        self.held = moe.weights_repacked() if in_place else moe.weights()
        self.between = inbox(self.kernel.routed)

    def layer(self) -> Part:
        """Experts are drawn evenly; those that the router finds are chosen, and not taken."""
        front, tail = self.front, self.tail
        ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(len(front.z))]).int()
        experts = Bound(self.kernel, z=front.z, ids=ids.cuda(), gains=front.gains,
                        slots=tail.slots, inbox=self.between, **self.held)  # fmt: skip
        moved = front.bytes_each + tail.bytes_each
        moved += len(ids.unique()) * self.kernel.routed.bytes_per_expert
        # The shared experts' second map comes first: its weights arrive while experts are chosen.
        return [*front.ours(), tail.shared(), experts, *tail.ours()], moved


def attention(kind: str, batch: int, sources: int, site: Residual) -> Part:
    """The attention half of one layer, from the mixed row to the next one."""
    outputs = MAPS["kda_in" if kind == "K" else "mla_in"][0]
    wide, inputs = MAPS["out"]
    moved = 2.0 * HIDDEN * (outputs + inputs)
    core: list[Call]
    into: Tensor
    out: Tensor
    if kind == "K":
        heads = Heads(batch)
        into, out, core = heads.fixed["projected"], heads.fixed["y"], [heads.ours()]
        moved += state_bytes(batch)
    else:
        layer = mla.Layer(batch, CONTEXT)
        into, out, core = layer.projected, layer.y, list(layer.ours())
        moved += mla.WEIGHTS
    w_in = random(outputs, HIDDEN, scale=HIDDEN**-0.5)
    w_out = random(wide, inputs, scale=inputs**-0.5)
    first = Bound(projection(outputs, HIDDEN, batch), x=site.y, w=w_in, y=into)
    return [first, *core, *site.exchanged(sources, w_out, out)], moved


def layers(batch: int, sources: int, halves: str = "am", in_place: bool = True) -> Work:
    """Layers behind each other, each as if it were an op of its own. `halves`: attention, mixture,
    or both. `in_place`: experts are read as vLLM's back end has them, else as the checkpoint."""
    site = Residual(batch)
    mixture = Mixture(batch, sources, site, in_place)
    kinds = KINDS * (2 if batch < FEW else 1)
    parts: list[Part] = []
    for kind in kinds:
        parts += [attention(kind, batch, sources, site)] if "a" in halves else []
        parts += [mixture.layer()] if "m" in halves else []
    ours = [call for calls, _ in parts for call in calls]
    moved = sum(bytes_ for _, bytes_ in parts) / len(kinds)
    name = {"am": "layer", "a": "layer.attention", "m": "layer.mixture"}[halves]
    name += "" if in_place else ".kept"
    return Work(name, batch, moved, len(ours) / len(kinds), ours, [], times=len(kinds))
