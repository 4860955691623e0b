"""Which function runs a stage: the one table that `pipeline` and `selftest` share.

Owns no order; that is the pipeline's.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from fasttrack import isolation
from fasttrack.audit import stage as audit
from fasttrack.correctness import features
from fasttrack.correctness import path as proofs
from fasttrack.engine.setting import Setting
from fasttrack.errors import EnvironmentUnmet
from fasttrack.evals import run as evals
from fasttrack.perf import sweep
from fasttrack.schema import Record
from fasttrack.schema.record import Stage

Runner = Callable[[Setting, Mapping[str, Any]], list[Record]]


def _kernels(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """The one stage that computes with arrays: loaded on use, so that the core needs none."""
    if spec.get("check") == "compiled":
        return audit.run(setting, spec)
    for package in ("numpy", "torch"):
        if importlib.util.find_spec(package) is None:
            raise EnvironmentUnmet(
                "ENV-001",
                f"the kernels stage needs the package {package!r}",
                next_step="pip install 'fasttrack[validate]', or --skip kernels",
            )
    from fasttrack.correctness import kernels

    return kernels.run(setting, spec)


RUNNERS: Mapping[Stage, Runner] = {
    "isolation": isolation.run,
    "kernels": _kernels,
    "path": proofs.run,
    "features": features.run,
    "evals": evals.run,
    "perf": sweep.run,
}
