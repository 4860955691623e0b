"""What the device took for a step's model, by its own clock, beside what the step took on the wall.

Where few layers leave the device waiting for the host, the wall clock hides a kernel's gain; a
reader sees both. Paired as the wall times are, and described: no verdict reads it, since the
optimization's process could hand out any number. Read by `speed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fasttrack import stats
from fasttrack.perf.window import window
from fasttrack.rules.looks import Boot, paired
from fasttrack.schema import ARMS, Cell, SampleRecord


def described(samples: Sequence[SampleRecord], cell: Cell, level: float) -> dict[str, float]:
    """Fields of a verdict, by name; none unless every step that counts was timed in every boot.

    The interval is that of all pairs, at the one-sided `level`.
    """
    # Asked first: a window costs a walk over all steps, and most runs have no such clock.
    if cell.workload != "decode" or not samples or not all(len(s.device_s) for s in samples):
        return {}
    costs = {id(sample): _cost_s(sample, cell) for sample in samples}
    if not all(costs.values()):
        return {}
    pairs = paired(Boot(s.block, s.position, s.arm, costs[id(s)]) for s in samples)
    if len(pairs) < 2:
        return {}
    seen = stats.t_interval([pair.log for pair in pairs], level)
    of = {arm: stats.median([costs[id(s)] for s in samples if s.arm == arm]) for arm in ARMS}
    return {
        "device_base_ms": 1e3 * of["base"],
        "device_candidate_ms": 1e3 * of["candidate"],
        "device_estimate": math.exp(seen.estimate),
        "device_lower": math.exp(seen.lower),
        "device_upper": math.exp(seen.upper),
    }


def _cost_s(sample: SampleRecord, cell: Cell) -> float:
    """Median of the steps that count, seconds; 0 where one of them was not timed."""
    chosen = window(sample.steps, cell)
    told = list(sample.device_s[chosen.start : chosen.stop])
    known = [seconds for seconds in told if seconds is not None and seconds > 0]
    return stats.median(known) if known and len(known) == len(chosen) else 0.0
