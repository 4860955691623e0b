"""Cases and kernels of a planted tree: one cell of the routed experts, and what it is compiled of.

Copied into the tree by `write_trees`, beside the kernels that it spoils.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_k3.cases.gpu.experts import ExpertsCase

if TYPE_CHECKING:
    from fasttrack.audit.declare import CompiledKernel
    from fasttrack.correctness.case import Regime

CELL = {"experts": 24, "padding": 0, "batch": 8}
"""Two blocks on every multiprocessor, and weights that stay in the L2 cache."""
KERNELS = ("experts.64", "experts.finalize")


class OneCell(ExpertsCase):
    """The case as it is, in one of its cells."""

    def regimes(self) -> Sequence[Regime]:
        """That one."""
        return [one for one in self.every() if one == CELL]


def cases() -> list[OneCell]:
    """For the claim."""
    return [OneCell()]


def kernels() -> list[CompiledKernel]:
    """Both of the op, for the device it is measured on."""
    from kimi_k3.kernels.compiled import mixture

    return [replace(one, archs=("sm_90a",)) for one in mixture() if one.name in KERNELS]
