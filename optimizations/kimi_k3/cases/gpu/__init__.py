"""Kernel cases of the GPU kernels, at real shapes of one rank of eight.

`claimed()` is what a claim on a GPU target names, `cases()` what the tests run through; needs a
CUDA device of compute capability 9.0 or later, torch and CuTe DSL to run, nothing to be imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fasttrack.correctness.case import KernelCase

LEFT_OUT = {
    "kda": (
        "heads=12/tokens=1/null=0/moved=0/batch=[359]", "heads=12/*/batch=17",
        "heads=12/*/batch=3[23]", "heads=12/*/batch=64", "heads=6/*/batch=16", "heads=24/*",
        "heads=96/*", "heads=12/tokens=[248]/*/batch=5",
    ),
    "projection": (
        "batch=[23459]/*/inputs=7168", "batch=17/*/inputs=7168", "batch=3[23]/*/inputs=7168",
        "batch=[2359]/*/inputs=1536", "batch=17/*/inputs=1536", "batch=32/*/inputs=1536",
    ),
    "oproj": (
        "heads=12/*/batch=[23589]", "heads=12/*/batch=17", "heads=12/*/batch=3[23]",
        "heads=12/sources=4/restart=1/*/batch=64", "heads=6/*/batch=[13]", "heads=6/*/batch=64",
    ),
    "moe_front": (
        "ranks=8/apart=0/padding=0/*", "*/padding=2/batch=3", "ranks=2/*", "*/apart=1/*",
    ),
    "experts": (
        "experts=64/padding=0/batch=[1234589]", "experts=64/padding=0/batch=1[67]",
        "experts=64/padding=0/batch=3[23]", "experts=24/*/batch=[36][34]", "*/padding=2/batch=3",
        "*/padding=2/batch=64",
    ),
    "moe_tail": (
        "ranks=2/padding=0/batch=[234589]", "ranks=2/padding=0/batch=1[67]",
        "ranks=2/padding=0/batch=3[23]", "ranks=8/*/batch=1", "*/padding=2/batch=3",
    ),
}  # fmt: skip
"""Cells with many megabytes of states or weights: the referee compares each several hundred times,
half a minute and more per cell. They run the code of cells that are measured at other shapes, and
`tests/test_gpu_kernels.py` runs them all."""


def cases() -> list[KernelCase]:
    """One case per kernel."""
    from kimi_k3.cases.gpu.attn_res import AttnResCase
    from kimi_k3.cases.gpu.experts import ExpertsCase
    from kimi_k3.cases.gpu.kda import KdaCase
    from kimi_k3.cases.gpu.mla import QueryCase, ValueCase
    from kimi_k3.cases.gpu.mla_core import CoreCase
    from kimi_k3.cases.gpu.moe_front import FrontCase
    from kimi_k3.cases.gpu.moe_tail import TailCase
    from kimi_k3.cases.gpu.oproj import OProjCase
    from kimi_k3.cases.gpu.projection import ProjectionCase

    return [
        AttnResCase(), ProjectionCase(), KdaCase(), QueryCase(), CoreCase(), ValueCase(),
        OProjCase(), FrontCase(), ExpertsCase(), TailCase(),
    ]  # fmt: skip


def claimed() -> list[KernelCase]:
    """The same without what is left out."""
    made = cases()
    for case in made:
        case.left_out = LEFT_OUT.get(case.op, ())  # type: ignore[attr-defined]
    return made
