"""Step logs that tell something else than what ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    PathRecord,
    State,
)
from spoilt.cheat import Cheat, without


def logged(name: str, stage: Any, arm: Any, steps: Sequence[Any], reason: str, says: str = "",
           state: State = State.FAIL, where: str = "") -> Cheat:  # fmt: skip
    """A step log that tells something else."""
    records = [
        zoo.path(stage, arm, name=r.session, cell=r.cell, steps=steps)
        if isinstance(r, PathRecord) and r.stage == stage and r.arm == arm
        else r
        for r in zoo.honest_run()
    ]
    return Cheat(name, records, f"{stage}/{arm}{where}", state, reason, says)


def steps(arm: Any, **changes: dict[str, Any]) -> list[Any]:
    """The honest log of a round; ``s3={"path": ...}`` changes its fourth step."""
    return [
        zoo.path_step(arm, decode, prefill, index, **changes.get(f"s{index}", {}))
        for index, (decode, prefill) in enumerate(zoo.ROUND)
    ]


STOCK = {"path": "stock", "reason": "dtype"}
FAST = {"path": "specialised"}
PATH = (
    logged("never_specialised", "evals", "candidate", steps("candidate", s3=STOCK, s4=STOCK,
           s5=STOCK), "PATH-NONE", "dtype", State.NOT_EXERCISED),
    logged("specialised_prefill", "features", "candidate", steps("candidate", s0=FAST),
           "PATH-PREFILL", "first at step 0"),
    logged("specialised_mixed_step", "features", "candidate", steps("candidate", s2=FAST),
           "PATH-PREFILL", "first at step 2"),
    logged("base_is_specialised_too", "evals", "base", steps("base", s4=FAST), "PATH-BASE"),
    logged("falls_back_now_and_then", "evals", "candidate", steps("candidate", s4=STOCK),
           "PATH-FALLBACK", "1 pure decode steps ran stock, 1 did not: 1x dtype",
           where="/recall/main/concurrency=8/rows=2-8"),
    logged("falls_back_for_more_than_one_row", "evals", "candidate",
           steps("candidate", s3=STOCK, s4=STOCK), "PATH-NONE",
           "2 decode steps, none specialised: 2x dtype", State.NOT_EXERCISED,
           where="/recall/main/concurrency=8/rows=2-8"),
    Cheat("feature_without_a_log",
          without(lambda r: isinstance(r, PathRecord) and r.cell == "features/sampling"),
          "features/candidate/sampling", State.NOT_EXERCISED, "PATH-NONE", "no path evidence"),
    logged("decode_told_as_prefill", "evals", "candidate",
           steps("candidate", s4=STOCK | {"prefill_tokens": 2}), "PATH-MISMATCH",
           "step 4 prefilled 0 tokens, the log says 2"),
    logged("log_of_fewer_tokens", "features", "candidate",
           steps("candidate", s1={"tokens": 31, "prefill_tokens": 31}), "PATH-MISMATCH",
           "scheduler ran 6 steps"),
    logged("log_of_fewer_steps", "features", "candidate", steps("candidate")[:-1],
           "PATH-MISMATCH", "6 steps of 118 tokens, the log has 5 of 117"),
    logged("prefill_told_as_decode", "features", "candidate",
           steps("candidate", s1={"path": "specialised", "prefill_tokens": 0}), "PATH-MISMATCH",
           "step 1 prefilled 32 tokens, the log says 0"),
    logged("log_padded_with_steps_nobody_ran", "features", "candidate",
           [*steps("candidate", s3=STOCK, s4=STOCK, s5=STOCK),
            *(zoo.path_step("candidate", 1, 0, n) for n in range(6, 40))],
           "PATH-NONE", "", State.NOT_EXERCISED),
    logged("empty_log", "features", "candidate", [], "NO-RECORDS", "", State.MISSING),
    Cheat("no_log_at_all",
          without(lambda r: isinstance(r, PathRecord) and r.stage == "perf" and r.arm == "base"),
          "perf/base", State.MISSING, "NO-RECORDS"),
)  # fmt: skip
