"""Cells that need another engine than the plain one: did it start, and are drafts accepted alike?

Accepted drafts are counted from the tokens that steps hand out: beside its drafts, a request gets
one token per step. A gain by accepting more is none of the path's, and wrong answers pay for it
(`relaxed_accept`). Simulated acceptance is for times alone, and must be what was asked for: an
engine may ignore it. Owns both questions; read by `speed`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fasttrack.perf.window import window
from fasttrack.rules.base import Case
from fasttrack.schema import ARMS, Arm, Cell, RefusalRecord, SampleRecord, State

SIGMAS = 3.0
"""A difference counts when it is this many standard errors and above the policy's margin."""


def refusal(case: Case, cell: Cell) -> tuple[State, str] | None:
    """State and reason of a cell whose engine did not start; None where both arms did."""
    found = [r for r in case.records(RefusalRecord) if r.shape == cell.shape.name]
    if not found:
        return None
    stock = next((r for r in found if r.arm == "base"), None)
    if stock is not None:
        return State.UNSUPPORTED, f"stock does not start: {stock.code} {stock.cause[:300]}"
    why = f"stock starts, the candidate does not: {found[0].code} {found[0].cause[:300]}"
    return State.NOT_EXERCISED, why


def acceptance_problem(samples: Sequence[SampleRecord], cell: Cell, case: Case) -> str:
    """Why acceptance spoils the comparison of a cell; empty if it does not. Reads no duration."""
    if not cell.draft_tokens:
        return ""
    counts = {arm: _counts(samples, cell, arm) for arm in ARMS}
    if not all(drafts for _, drafts in counts.values()):
        return ""
    wanted = case.target.drafts.expected(cell.draft_tokens)
    margin = case.policy.speed.acceptance_margin
    if wanted is not None:
        for arm, (accepted, drafts) in counts.items():
            apart = abs(accepted / drafts - wanted)
            if apart > margin + SIGMAS * _error(wanted, drafts, cell):
                return f"{arm} accepts {_share(accepted, drafts)} of its drafts, not {wanted:.1%}"
        return ""
    (base, of_base), (mine, of_mine) = counts["base"], counts["candidate"]
    pooled = (base + mine) / (of_base + of_mine)
    error = _error(pooled, of_base, cell) + _error(pooled, of_mine, cell)
    if abs(base / of_base - mine / of_mine) > max(margin, SIGMAS * error):
        return (
            f"verification accepts {_share(base, of_base)} of the drafts in base, "
            f"{_share(mine, of_mine)} in candidate"
        )
    return ""


def told(samples: Sequence[SampleRecord], cell: Cell, case: Case) -> str:
    """What to say of a cell's drafts beside its times; empty where it has none."""
    if not cell.draft_tokens:
        return ""
    said = []
    for arm in ARMS:
        accepted, drafts = _counts(samples, cell, arm)
        said.append(_share(accepted, drafts) if drafts else "-")
    kind = "" if case.target.drafts.acceptance is None else "SYNTHETIC acceptance, times only: "
    return f"; {kind}accepted {said[0]} -> {said[1]} of {cell.draft_tokens} drafts a step"


def _counts(samples: Sequence[SampleRecord], cell: Cell, arm: Arm) -> tuple[int, int]:
    """(accepted, made) draft tokens in the windows of an arm."""
    accepted = drafts = 0
    for sample in samples:
        chosen = window(sample.steps, cell) if sample.arm == arm else range(0)
        made = sum(sample.emitted[chosen.start : chosen.stop])
        accepted += max(0, made - cell.batch * len(chosen))
        drafts += cell.batch * cell.draft_tokens * len(chosen)
    return accepted, drafts


def _error(share: float, drafts: int, cell: Cell) -> float:
    """Standard error of a share; drafts of one step stand or fall together, and count as one."""
    return math.sqrt(share * (1 - share) * cell.draft_tokens / drafts)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}"
