"""Cases and kernels of a planted tree: one cell of the routed experts, and what it is compiled of.

Copied into the tree by `write_trees`, beside the kernels that it spoils.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasttrack.audit.declare import CompiledKernel
    from fasttrack.correctness.case import KernelCase

CELL = {"experts": 24, "padding": 0, "batch": 8}
"""Two blocks on every multiprocessor, and weights that stay in the L2 cache."""
KERNELS = ("experts.64", "experts.finalize")


def cases() -> list[KernelCase]:
    """The op's case, in one of its cells."""
    from kimi_k3.cases.gpu.experts import ExpertsCase  # needs torch, which the audit has not

    case = ExpertsCase()
    others = [regime for regime in case.every() if regime != CELL]
    case.left_out = ["/".join(f"{k}={v}" for k, v in one.items()) for one in others]
    return [case]


def kernels() -> list[CompiledKernel]:
    """Both of the op, for the device it is measured on."""
    from kimi_k3.kernels.compiled import mixture

    return [replace(one, archs=("sm_90a",)) for one in mixture() if one.name in KERNELS]
