"""Attention residuals: softmax attention over depth in place of the residual stream.

Owns: one mix site and its bookkeeping. Does not own: which layer has which site (`dims`,
`decoder`). Read by: `decoder`, oracles.

Per token there is a running prefix and a bank of stored blocks. A site scores every stored block
and the prefix, mixes the raw vectors by the softmax of the scores and normalises the mixture; the
mixture feeds the next module and never the prefix.
Source: Kimi K3 technical report, section 2.2, equations 8 to 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kimi_k3.reference.basic import rms_norm


class Site(NamedTuple):
    """What a mix site returns."""

    output: Tensor
    """[..., hidden] normalised mixture, input of the module that follows."""
    prefix: Tensor
    """[..., hidden] prefix after adding `delta`."""
    bank: tuple[Tensor, ...]
    """Stored blocks, each [..., hidden], including one just written."""


def scores(sources: Tensor, gain: Tensor, query: Tensor, eps: float) -> Tensor:
    """sources [n, ..., hidden] -> depth scores [n, ...]: (gain * query) . s / rms(s)."""
    inverse_rms = torch.rsqrt(sources.square().mean(-1) + eps)
    return (sources * (gain * query)).sum(-1) * inverse_rms


def mix(prefix: Tensor, bank: Sequence[Tensor], gain: Tensor, query: Tensor, eps: float) -> Tensor:
    """Mixture of every block of `bank` and of `prefix`, all [..., hidden]; an empty bank is exact.

    gain: res-norm weight [hidden]. query: res-proj weight [hidden] or [1, hidden].
    """
    if not bank:
        return prefix
    sources = torch.stack([*bank, prefix])
    weight = scores(sources, gain, query.reshape(-1), eps).softmax(0)
    return (weight.unsqueeze(-1) * sources).sum(0)


def site(
    prefix: Tensor,
    delta: Tensor | None,
    bank: Sequence[Tensor],
    write: bool,
    gain: Tensor,
    query: Tensor,
    out_gain: Tensor,
    eps: float,
) -> Site:
    """One mix site: prefix += delta, mix with `bank`, normalise; then store the prefix if `write`.

    The block written here is not among the sources here: the prefix itself is. `out_gain` [hidden]
    is the layer norm that follows the mixture. Shapes as in `Site` and `mix`.
    """
    if delta is not None:
        prefix = prefix + delta
    mixed = mix(prefix, bank, gain, query, eps)
    bank = (*bank, prefix) if write else tuple(bank)
    return Site(rms_norm(mixed, out_gain, eps), prefix, bank)
