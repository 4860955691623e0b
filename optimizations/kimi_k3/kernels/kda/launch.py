"""The KDA kernel as it is cut for a batch. Read by: `kernels.compiled`, cases, the benchmark."""

from __future__ import annotations

from kimi_k3.kernels.kda.form import Heads, cut, pitch
from kimi_k3.kernels.kda.kernel import Kda


def kda(heads: int, batch: int, tokens: int, slots: int, lower_bound: float) -> Kda:
    """The kernel for `batch` requests of `tokens` tokens."""
    return Kda(Heads(heads, batch, tokens, pitch(heads), slots, lower_bound, *cut(heads, batch)))
