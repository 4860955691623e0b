"""Kernels of the routed experts as cut for a device. Read by: `kernels.compiled`, cases, the
benchmark."""

from __future__ import annotations

from typing import cast

from kimi_k3.kernels.attn_res.kernel import Site
from kimi_k3.kernels.moe.form import Choice, Repacked, Routed, cut
from kimi_k3.kernels.moe.kernel.experts import Experts
from kimi_k3.kernels.moe.kernel.finalize import Finalize
from kimi_k3.kernels.moe.kernel.front import (
    VECTOR,
    PublishFront,
    PublishFrontAndShared,
    Route,
    RouteAndActivate,
)
from kimi_k3.kernels.moe.kernel.repacked import RepackedExperts
from kimi_k3.kernels.moe.kernel.tail import (
    Activate,
    CollectRow,
    NormLatent,
    PublishLatent,
    PublishRow,
    PublishShares,
)
from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.projection import form as projection
from kimi_k3.kernels.projection.form import H200, Device

EXPERTS, LATENT, INTER, TOP_K = 896, 3584, 384, 16
"""Kimi K3 on one rank of eight."""


def experts(batch: int, count: int = EXPERTS, device: Device = H200) -> Experts:
    """The kernel for `batch` rows and `count` experts."""
    return Experts(_form(batch, count, device))


def repacked_experts(batch: int, count: int = EXPERTS, device: Device = H200) -> RepackedExperts:
    """The same for weights as vLLM's back end repacks them."""
    made = cut(count, LATENT, INTER, TOP_K, batch, *device, kind=Repacked)
    return RepackedExperts(cast(Repacked, made))


def finalize(batch: int, count: int = EXPERTS, device: Device = H200) -> Finalize:
    """The kernel that sums a row's experts."""
    return Finalize(_form(batch, count, device))


def _form(batch: int, count: int, device: Device) -> Routed:
    return cut(count, LATENT, INTER, TOP_K, batch, *device)


def front_exchange(experts: int, latent: int, ranks: int, capacity: int = 64) -> Exchange:
    """What ranks with an equal share of experts and latent width tell each other per row."""
    return Exchange(ranks, (2 * experts + latent) // ranks, capacity)


def publish_front(
    hidden: int, experts: int, latent: int, batch: int, exchange: Exchange, device: Device = H200,
    shared: int = 0,
) -> PublishFront:  # fmt: skip
    """The kernel for a rank's share of router and latent down-projection, and x [batch, hidden];
    also for the gates and ups of its `shared` numbers of the shared experts, if not 0."""
    share = experts // exchange.ranks
    outputs = share + latent // exchange.ranks + 2 * shared
    form = projection.cut(outputs, hidden, batch, device, multiple=VECTOR)
    if not shared:
        return PublishFront(form, exchange, share)
    return PublishFrontAndShared(form, exchange, share, 2 * shared)


def route(
    experts: int, latent: int, batch: int, exchange: Exchange, top_k: int = TOP_K, shared: int = 0,
) -> Route:  # fmt: skip
    """The kernel that takes all ranks' shares and chooses; it also activates the shared experts'
    `shared` numbers, if not 0."""
    choice = Choice(experts, latent, top_k, batch)
    return RouteAndActivate(choice, exchange, shared) if shared else Route(choice, exchange)


def publish_latent(batch: int, exchange: Exchange, count: int = EXPERTS) -> PublishLatent:
    """The kernel that sums a row's experts and tells all ranks."""
    return PublishLatent(_form(batch, count, H200), exchange)


def norm_latent(batch: int, exchange: Exchange, eps: float) -> NormLatent:
    """The kernel that sums over ranks and normalises."""
    return NormLatent(batch, exchange, eps)


def publish_shares(
    inputs: int, batch: int, exchange: Exchange, device: Device = H200
) -> PublishShares:
    """The kernel for w [all ranks' columns, inputs] of the shared experts."""
    outputs = exchange.ranks * exchange.hidden
    return PublishShares(projection.cut(outputs, inputs, batch, device, multiple=VECTOR), exchange)


def publish_row(latent: int, batch: int, exchange: Exchange, device: Device = H200) -> PublishRow:
    """The kernel for the up-projection's rows [exchange.hidden, latent] of one rank."""
    form = projection.cut(exchange.hidden, latent, batch, device, multiple=VECTOR)
    return PublishRow(form, exchange)


def collect_row(site: Site, exchange: Exchange) -> CollectRow:
    """The kernel of the mix site that takes the ranks' columns."""
    return CollectRow(site, exchange)


def activate(batch: int, width: int, beta: float = 4.0, linear_beta: float = 25.0) -> Activate:
    """The kernel between the maps of the shared experts."""
    return Activate(batch, width, beta, linear_beta)
