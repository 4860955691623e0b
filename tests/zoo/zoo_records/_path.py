"""Sessions and their step logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fasttrack.schema import (
    Arm,
    PathRecord,
    PathStep,
    SessionRecord,
)
from fasttrack.schema.record import Stage
from zoo_records._run import SWITCH


def session(stage: Stage, name: str, arm: Arm, **changes: Any) -> SessionRecord:
    """One boot."""
    return SessionRecord(
        **{
            "stage": stage,
            "session": name,
            "arm": arm,
            "started_utc": "2026-01-01T00:00:10+00:00",
            "start_s": 1.0,
            "ready_s": 2.0,
            "end_s": 3.0,
            "switch": SWITCH[arm],
            "fingerprint": {"engine": "fake-1", "max_model_len": 2048, "timer": "perf_counter"},
        }
        | changes
    )


def path_step(arm: Arm, decode: int, prefill: int, index: int = 0, **changes: Any) -> PathStep:
    """What an honest optimization logs of a step."""
    fast = arm == "candidate" and decode > 0 and prefill == 0
    reason = "pure decode" if fast else "prefill" if prefill else "switched off"
    return PathStep(
        **{
            "step": index,
            "path": "specialised" if fast else "stock",
            "reason": reason,
            "requests": max(1, decode),
            "tokens": decode + prefill,
            "prefill_tokens": prefill,
        }
        | changes
    )


Scheduled = Sequence[tuple[int, int]]
ROUND: Scheduled = ((0, 64), (0, 32), (1, 16), (2, 0), (2, 0), (1, 0))
"""(decode, prefill) tokens of a short round of work: prefill, a mixed step, decode."""


def path(
    stage: Stage,
    arm: Arm,
    scheduled: Scheduled = ROUND,
    *,
    name: str = "",
    cell: str = "features/x",
    steps: Sequence[PathStep] | None = None,
    drafted: Sequence[int] = (),
) -> PathRecord:
    """The step log of a call; `steps` replaces what the optimization tells."""
    honest = [path_step(arm, d, p, index) for index, (d, p) in enumerate(scheduled)]
    return PathRecord(
        stage=stage,
        session=name or f"{stage}-{arm}",
        arm=arm,
        cell=cell,
        steps=honest if steps is None else steps,
        scheduled=tuple(scheduled),
        drafted=drafted,
    )
