"""Kernel cases: every compiled unit of the specialised step as the harness judges it.

`cases()` is the entry point. Each case has its own file; `common` holds what they share.
Reads `reference` for truth and stock arithmetic, `kernels` and `runtime.step` for the candidate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasttrack.correctness.case import KernelCase


def cases() -> list[KernelCase]:
    """One case per compiled unit of a single rank, and one for the whole step."""
    from kimi_k3.cases.kda import KdaCase
    from kimi_k3.cases.mla import MlaCase
    from kimi_k3.cases.mlp import DenseCase, MoeCase
    from kimi_k3.cases.step import FinalCase, StepCase

    return [KdaCase(), MlaCase(), MoeCase(), DenseCase(), FinalCase(), StepCase()]
