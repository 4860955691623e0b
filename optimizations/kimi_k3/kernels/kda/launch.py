"""The KDA kernel as it is cut for a batch. Read by: `kernels.compiled`, cases, the benchmark."""

from __future__ import annotations

from kimi_k3.kernels.kda.form import Heads, cut, pitch
from kimi_k3.kernels.kda.kernel import Kda


def kda(heads: int, batch: int, tokens: int, slots: int, lower_bound: float) -> Kda:
    """The kernel for `batch` requests of `tokens` tokens."""
    return Kda(Heads(heads, batch, tokens, pitch(heads), slots, lower_bound, *cut(heads, batch)))


def paged(heads: int, batch: int, lower_bound: float, conv_pitch: int, state_pitch: int) -> Kda:
    """The kernel for one token of `batch` requests whose slots lie `conv_pitch` and `state_pitch`
    numbers apart; it is given the first slot of each pool."""
    form = Heads(heads, batch, 1, pitch(heads), 1, lower_bound, *cut(heads, batch))
    return Kda(form._replace(conv_pitch=conv_pitch, state_pitch=state_pitch))
