"""Both kernels of the exchange as cut for a device. Read by: `kernels.compiled`, cases, the
benchmark."""

from __future__ import annotations

from kimi_k3.kernels.attn_res.kernel import VECTOR, Site
from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.oproj.kernel import Collect, Publish
from kimi_k3.kernels.projection.form import H200, Device, cut


def publish(inputs: int, batch: int, exchange: Exchange, device: Device = H200) -> Publish:
    """The kernel for w [hidden, inputs] and x [batch, inputs] of one rank."""
    return Publish(cut(exchange.hidden, inputs, batch, device, multiple=VECTOR), exchange)


def collect(site: Site, exchange: Exchange) -> Collect:
    """The kernel of the mix site that takes the ranks' sum."""
    return Collect(site, exchange)
