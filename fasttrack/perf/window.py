"""Which steps of a session count, and what they cost: cut by rule and not by look, per workload.

Three kinds of work, never summed. `decode`: the steady window, in which every lane decodes and
nothing is prefilled; its cost is the median step. `prefill`: rounds of prompts, of which the first
is warm-up; seconds per prompt token, the median round. `mixed`: every lane decodes while prompts
come and go beside them; the mean step, since pure and mixed steps take turns. Leaf, read by the
sweep and the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack import stats
from fasttrack.schema import Cell, EngineStep

WARM_UP_STEPS = 3
PREFILL_ROUNDS = 4
"""Rounds of a prefill cell; the first is warm-up."""


def decode_window(steps: Sequence[EngineStep], batch: int, lane_tokens: int = 1) -> range:
    """Indices of the steady steps, less the warm-up.

    Steady: every lane decoded `lane_tokens`, its drafts among them, and nothing was prefilled. The
    window is the longest unbroken run of such steps (the first of equals); its first
    `WARM_UP_STEPS` are dropped.
    """
    best = range(0)
    start: int | None = None
    for index, step in enumerate(steps):
        if step.decode_tokens == batch * lane_tokens and step.prefill_tokens == 0:
            start = index if start is None else start
        elif start is not None:
            best = range(start, index) if index - start > len(best) else best
            start = None
    if start is not None and len(steps) - start > len(best):
        best = range(start, len(steps))
    return range(min(best.start + WARM_UP_STEPS, best.stop), best.stop)


def mixed_window(steps: Sequence[EngineStep], batch: int) -> range:
    """From the fourth step in which every lane decodes to the last one that also prefills."""
    full = [index for index, step in enumerate(steps) if step.decode_tokens == batch]
    both = [index for index in full if steps[index].prefill_tokens]
    if len(full) <= WARM_UP_STEPS or not both:
        return range(0)
    start = full[WARM_UP_STEPS]
    return range(start, max(start, both[-1] + 1))


def prefill_rounds(steps: Sequence[EngineStep], round_tokens: int) -> list[range]:
    """Indices of the steps of each complete round of `round_tokens` prompt tokens."""
    rounds: list[range] = []
    start = seen = 0
    for index, step in enumerate(steps):
        seen += step.prefill_tokens
        if seen >= round_tokens:
            rounds.append(range(start, index + 1))
            start, seen = index + 1, 0
    return rounds


def window(steps: Sequence[EngineStep], cell: Cell) -> range:
    """Indices of the steps that count; of a prefill cell, all behind the first round."""
    if cell.workload == "decode":
        return decode_window(steps, cell.batch, cell.lane_tokens)
    if cell.workload == "mixed":
        return mixed_window(steps, cell.batch)
    rounds = prefill_rounds(steps, cell.batch * cell.context_tokens)
    return range(rounds[0].stop, rounds[-1].stop) if rounds else range(0)


def cost_s(steps: Sequence[EngineStep], cell: Cell) -> float:
    """What the cell's work costs, seconds: per step of the batch, or per prompt token.

    Raises `ValueError` where no step counts.
    """
    if cell.workload == "prefill":
        tokens = cell.batch * cell.context_tokens
        rounds = prefill_rounds(steps, tokens)[1:]
        return stats.median([sum(steps[i].duration_s for i in one) / tokens for one in rounds])
    chosen = window(steps, cell)
    durations = [step.duration_s for step in steps[chosen.start : chosen.stop]]
    return stats.median(durations) if cell.workload == "decode" else stats.mean(durations)
