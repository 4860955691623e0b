"""Compiled kernels that touch data before they may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    Record,
    State,
)
from spoilt.cheat import Cheat

AUDITED = "compiled/fuse/sm_90a"


def compiled(
    name: str, reason: str, says: str = "", state: State = State.FAIL, cell: str = AUDITED,
    plants: Sequence[Record] | None = None, **changes: Any,
) -> Cheat:  # fmt: skip
    """An audit of one kernel that differs from the honest one."""
    kernel = zoo.compiled_kernel(**{"cell": cell, **changes})
    records = zoo.honest_run(compiled=zoo.compiled(kernel, plants=plants))
    return Cheat(name, records, cell, state, reason, says)


def one_plant_gone(control: str) -> list[Record]:
    """The planted kernels without one."""
    return [record for record in zoo.planted_kernels() if record.control != control]


COMPILED = (
    compiled("activation_before_the_wait", "HOIST-EARLY-LOAD", "from parameter x",
             early=(zoo.early_access(parameters=(0,)),)),
    compiled("weight_or_activation", "HOIST-EARLY-LOAD", "from parameter x, w",
             early=(zoo.early_access(parameters=(0, 1)),)),
    compiled("weight_not_declared_static", "HOIST-EARLY-LOAD", "and 1 more", static=()),
    compiled("weight_written_early", "HOIST-EARLY-STORE", early=(zoo.early_access("store"),)),
    compiled("weight_counted_up_early", "HOIST-EARLY-STORE", early=(zoo.early_access("atomic"),)),
    compiled("output_before_the_wait", "HOIST-EARLY-STORE", "from parameter y",
             early=(zoo.early_access("store", (2,)),)),
    compiled("never_waits", "HOIST-NO-WAIT", waits=(), early=()),
    compiled("waits_under_a_predicate_only", "HOIST-NO-WAIT", "under a predicate", waits=(),
             guarded_waits=(0x80,), early=()),
    compiled("waits_although_not_dependent", "HOIST-EARLY-LOAD", dependent=False, static=()),
    compiled("address_of_nobody", "HOIST-UNREADABLE", "no kernel parameter",
             early=(zoo.early_access(parameters=(), why="no kernel parameter"),)),
    compiled("weight_through_an_unknown_value", "HOIST-UNREADABLE",
             early=(zoo.early_access(why="the value made at 0x30"),)),
    compiled("unknown_instruction", "HOIST-UNREADABLE", early=(zoo.early_access("unknown"),)),
    compiled("does_not_compile", "HOIST-UNREADABLE", "raised: planted", status="raised",
             message="planted"),
    compiled("cannot_be_followed", "HOIST-UNREADABLE", "unknown target", status="unreadable",
             message="unknown target: BRX R8"),
    compiled("kernel_beside_the_declared_one", "HOIST-UNREADABLE", "the cubin also holds other_1",
             functions=("fuse_0", "other_1")),
    compiled("kernels_not_declared", "HOIST-UNDECLARED", "ops.py", cell="compiled",
             status="undeclared", message="1 source file: ops.py"),
    compiled("no_compiler_here", "HOIST-TOOLS", "no nvdisasm", State.MISSING, cell="compiled",
             status="unavailable", message="there is no nvdisasm here"),
    compiled("no_kernel_planted", "HOIST-INSENSITIVE", "late_load was not planted",
             State.INSENSITIVE, plants=()),
    compiled("one_kernel_not_planted", "HOIST-INSENSITIVE", "early_tma was not planted",
             State.INSENSITIVE, plants=one_plant_gone("early_tma")),
    compiled("blind_to_a_planted_kernel", "HOIST-INSENSITIVE", "early_load was judged OK",
             State.INSENSITIVE,
             plants=[*one_plant_gone("early_load"),
                     zoo.compiled_kernel("early_load", "early_load")]),
    compiled("refuses_an_honest_plant", "HOIST-INSENSITIVE", "late_load was judged HOIST-NO-WAIT",
             State.INSENSITIVE,
             plants=[*one_plant_gone("late_load"),
                     zoo.compiled_kernel("late_load", "late_load", waits=())]),
    Cheat("compiled_code_without_records", zoo.honest_run(compiled=[]), "compiled",
          State.MISSING, "NO-RECORDS"),
)  # fmt: skip
