"""The attention half of one layer: which units run, in which order, with what.

Owns: joining units where one layer needs several. Does not own: how a unit is found (`call`), the
exchange of ranks that follows. Read by: the executor, kernel cases.

Rows of `prefix` [q*P, D] and `bank` [q*P, N, D] are token-major, the first token of every request
first: then each token's rows follow each other in memory, as units of one token want them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kimi_k3.kernels.kda.prepared import KdaWeights
from kimi_k3.kernels.mla.prepared import MlaWeights
from kimi_k3.kernels.oproj.portable import partial
from kimi_k3.runtime.step import Rows

Call = Callable[[str, list[Tensor]], list[Tensor]]
"""Runs the unit of a name on its arguments."""


def kda(
    call: Call,
    own: KdaWeights,
    sites: Tensor,
    states: tuple[Tensor, ...],
    plan: Rows,
    ordinal: int,
    prefix: Tensor,
    bank: Tensor,
) -> Tensor:
    """This rank's share [q*P, D] of KDA layer `ordinal`; its conv and recurrent states in place."""
    source, slots, owned = plan.source[ordinal], plan.slots[ordinal], plan.owned[ordinal]
    tokens, requests = slots.shape
    if tokens == 1:
        inputs = [prefix, bank, sites, *states, source, owned[0], *own.flat()]
        (share,) = call("kda", inputs)
        return share
    (projected,) = call("kda_project", [prefix, bank, sites, *own.row])
    heads = []
    for token, part in enumerate(projected.split(requests)):
        at = [source, slots[token], owned[token]]
        heads += call("kda_token", [part, *states, *at, *own.token])
        source = slots[token]
    # One product alone: a package of its own would be that same call.
    return partial(torch.cat(heads), own.out_proj)


def mla(
    call: Call,
    own: MlaWeights,
    sites: Tensor,
    cache: Tensor,
    plan: Rows,
    prefix: Tensor,
    bank: Tensor,
) -> Tensor:
    """This rank's share [q*P, D] of an MLA layer; its rows of `cache` in place."""
    shape = plan.write.shape
    inputs = [prefix.unflatten(0, shape), bank.unflatten(0, shape), sites, cache]
    at = [plan.write, plan.writable, plan.context, plan.visible]
    (share,) = call("mla", [*inputs, *at, *own])
    return share
