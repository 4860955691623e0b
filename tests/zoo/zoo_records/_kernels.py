"""The stage kernels: numerics, conduct, and the audit of compiled kernels."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from fasttrack.rules.hoist import CONTROLS as PLANTED_KERNELS
from fasttrack.schema import (
    Check,
    CompiledRecord,
    ConductRecord,
    EarlyAccess,
    ErrorStats,
    KernelRecord,
    Record,
)
from zoo_records._run import CONTROLS, REPEATS


def errors(scale: float = 1.0, **changes: Any) -> ErrorStats:
    """Error statistics of a matrix whose RMS error is `scale` times 1e-6."""
    unit = 1e-6 * scale
    return ErrorStats(
        **{
            "rms": unit,
            "q999": 3 * unit,
            "max": 4 * unit,
            "worst_slice_rms": 1.5 * unit,
            "worst_slice": "row=1",
            "mean_signed": 1e-3 * unit,
            "nonfinite": 0,
            "first_bad": "row=1,column=7",
        }
        | changes
    )


def kernels(
    candidate: Sequence[ErrorStats] | None = None,
    *,
    seeds: int = 4,
    cell: str = "mix/batch=1",
    op: str = "mix",
    output: str = "y",
    controls: Sequence[str] = CONTROLS,
    accepted: Sequence[str] = (),
    **changes: Any,
) -> list[Record]:
    """One cell over seeds, with planted controls; those `accepted` look as good as stock.

    The last record is the cell's conduct: nothing to find, no ability offered.
    """
    rng = random.Random(f"{cell}/{output}")
    made: list[Record] = []
    for seed in range(seeds):
        mine = candidate[seed % len(candidate)] if candidate else errors(rng.uniform(0.97, 1.03))
        for control in (None, *controls):
            planted = errors(1.0 if control in accepted else 500.0, mean_signed=0.0)
            values: dict[str, Any] = {
                "repeats": REPEATS if control is None and seed == 0 else 0,
                "repeats_equal": REPEATS if control is None and seed == 0 else 0,
                **(changes if control is None else {}),
            }
            made.append(
                KernelRecord(
                    op=op, cell=cell, regime={"batch": 1}, seed=seed, output=output, status="ok",
                    control=control, stock=errors(), rounding_rms=2e-8,
                    candidate=mine if control is None else planted, **values,
                )
            )  # fmt: skip
    made.append(conduct(cell, op))
    return made


def conduct(cell: str = "mix/batch=1", op: str = "mix", **found: Any) -> ConductRecord:
    """What was watched in a cell; `found` replaces what a check observed, by its name.

    A check that needs an ability is there when it is found to be something.
    """
    always = ("inputs_changed", "guards_changed", "late_writes", "stale_answers")
    bounds = {"pace": ("at_most", 3.0), "floor": ("at_least", 1e-6)}
    seen = dict.fromkeys(always, 0) | found
    checks = []
    for name, value in seen.items():
        relation, bound = bounds.get(name, ("equal", 0))
        checks.append(Check(name=name, relation=relation, observed=value, bound=bound))
    needs = ("floor", "guards_of_outputs", "hostile", "neighbours", "nonce", "pace", "padding",
             "permuted", "scalars", "skew", "unwritten")  # fmt: skip
    return ConductRecord(
        op=op, cell=cell, regime={"batch": 1}, seed=0, checks=checks, calls=10,
        not_offered=[name for name in needs if name not in seen], places=dict.fromkeys(found, "x"),
    )  # fmt: skip


def probed(probe: str, candidate: ErrorStats, seeds: int = 2, **changes: Any) -> list[Record]:
    """The honest cell with a probe that gave these errors in every seed."""
    sent = [
        KernelRecord(
            op="mix", cell="mix/batch=1", regime={"batch": 1}, seed=seed, output="y", status="ok",
            probe=probe, stock=errors(), rounding_rms=2e-8, candidate=candidate, **changes,
        )
        for seed in range(seeds)
    ]  # fmt: skip
    return [*kernels(), *sent]


def failed_kernel(status: Any, message: str = "planted") -> list[Record]:
    """A case that gave no output."""
    return [
        KernelRecord(
            op="mix", cell="mix/batch=1", regime={"batch": 1}, seed=0, output="*", status=status,
            message=message,
        )
    ]  # fmt: skip


def absent_kernel(op: str) -> list[Record]:
    """An op without a case."""
    return [
        KernelRecord(
            op=op, cell=op, regime={}, seed=0, output="*", status="absent", message="CAS-001: none"
        )
    ]  # fmt: skip


def compiled(*records: Record, plants: Sequence[Record] | None = None) -> list[Record]:
    """The audit of compiled code: its planted kernels, and `records`."""
    return [*(planted_kernels() if plants is None else plants), *records]


def not_compiled() -> Record:
    """What an optimization without kernels of its own leaves."""
    return CompiledRecord(cell="compiled", status="none")


def compiled_kernel(kernel: str = "fuse", control: str | None = None, **changes: Any) -> Record:
    """A kernel of x, w, y that reads its weight `w` at 0x40, waits at 0x80 and goes on."""
    return CompiledRecord(
        **{
            "cell": f"compiled/{kernel}/sm_90a",
            "kernel": kernel,
            "arch": "sm_90a",
            "status": "ok",
            "control": control,
            "function": f"{kernel}_0",
            "functions": (f"{kernel}_0",),
            "cubin_sha256": hashlib.sha256(kernel.encode()).hexdigest(),
            "parameters": ("x", "w", "y"),
            "static": (1,),
            "instructions": 32,
            "waits": (0x80,),
            "early": (early_access(),),
        }
        | changes
    )


def early_access(access: Any = "load", parameters: Sequence[int] = (1,), why: str = "") -> Any:
    """One access before the wait."""
    return EarlyAccess(
        access=access, parameters=parameters, unresolved=why, offsets=(0x40, 0x50),
        first="LDG.E R2, desc[UR4][R2.64]",
    )  # fmt: skip


def planted_kernels() -> list[Record]:
    """Every control of the audit, judged as it must be."""
    found = {
        "OK": {},
        "HOIST-EARLY-LOAD": {"early": (early_access(parameters=(0,)),)},
        "HOIST-EARLY-STORE": {"early": (early_access("store", (2,)),)},
        "HOIST-UNREADABLE": {"early": (early_access(parameters=(), why="no kernel parameter"),)},
        "HOIST-NO-WAIT": {"waits": ()},
    }
    return [
        compiled_kernel(control, control, **found[reason])
        for control, reason in PLANTED_KERNELS.items()
    ]
