"""Kernel cases of the GPU kernels, at real shapes of one rank of eight.

`cases()` is what a claim on a GPU target names; needs a CUDA device of compute capability 9.0 or
later, torch and CuTe DSL to run, nothing to be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasttrack.correctness.case import KernelCase


def cases() -> list[KernelCase]:
    """One case per kernel."""
    from kimi_k3.cases.gpu.attn_res import AttnResCase
    from kimi_k3.cases.gpu.kda import KdaCase
    from kimi_k3.cases.gpu.mla import QueryCase, ValueCase
    from kimi_k3.cases.gpu.mla_core import CoreCase
    from kimi_k3.cases.gpu.oproj import OProjCase
    from kimi_k3.cases.gpu.projection import ProjectionCase

    return [
        AttnResCase(), ProjectionCase(), KdaCase(), QueryCase(), CoreCase(), ValueCase(),
        OProjCase(),
    ]  # fmt: skip
