"""Weights of a mix site.

Owns: the packed form, two vectors that head every packed set. Read by: the other `prepared`
modules, the executor.
"""

from __future__ import annotations

from torch import Tensor

from kimi_k3.kernels.common import Get


def pack(get: Get, site: str, norm: str) -> tuple[Tensor, Tensor]:
    """Score [D], res-norm gain times res-proj row, and gain [D] of the layer norm that follows.

    `site` as in `self_attention_res`, `norm` as in `input_layernorm`. Every rank holds both whole.
    """
    score = get(f"{site}_norm.weight") * get(f"{site}_proj.weight").reshape(-1)
    return score, get(f"{norm}.weight").clone()
