"""When looking at a speed cell ends, and what is then concluded: planned looks, corrected level.

A cell is looked at after fixed numbers of valid pairs (`SpeedPolicy.look_pairs`). Each look is made
at the one-sided level divided by the number of looks (Bonferroni), so that looking often cannot
find a difference that is not there; the first look that decides is the answer, whatever is
measured after it. Pure, and owns no records: a rule says what each boot cost. Read by `agent`, by
`speed`, and by the sweep through it, which measures no further what is settled.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fasttrack import stats
from fasttrack.schema import State
from fasttrack.schema.policy import SpeedPolicy


@dataclass(frozen=True)
class Pair:
    """One pair of engine boots: ln(base time / candidate time)."""

    block: int
    log: float


class Boot(NamedTuple):
    """What one engine boot measured of a cell."""

    block: int
    position: int
    """Within the block, 0-3."""
    arm: str
    cost: float
    """A time, in any unit; positive."""


PAIRS = ((0, 1), (3, 2))
"""Positions within a block of the two boots of each pair."""


def paired(boots: Iterable[Boot]) -> list[Pair]:
    """The pairs of blocks of four (ABBA or BAAB), in order: positions (0, 1) and (3, 2) of each."""
    blocks: dict[int, dict[int, Boot]] = defaultdict(dict)
    for boot in boots:
        blocks[boot.block][boot.position] = boot
    pairs = []
    for block, members in sorted(blocks.items()):
        for outer, inner in PAIRS:
            if outer in members and inner in members:
                cost = {members[at].arm: members[at].cost for at in (outer, inner)}
                if len(cost) == 2:
                    pairs.append(Pair(block, math.log(cost["base"] / cost["candidate"])))
    return pairs


@dataclass(frozen=True)
class Look:
    """What one look saw. `interval` and `floor` are natural logarithms of ratios."""

    number: int
    state: State
    reason: str
    interval: stats.Interval
    floor: float
    settled: bool
    """Whether further pairs could not change the answer any more."""


def decide(
    pairs: Sequence[Pair],
    noise: Mapping[int, float],
    policy: SpeedPolicy,
    claimed: bool,
) -> Look | None:
    """The first look that settles the cell, else the last one that could be made; None before it.

    `pairs`: valid ones, in the order of blocks. `noise`: per block, the root mean square of the log
    differences of its two base boots over the cell's class. `claimed`: whether the sentence calls
    the cell faster; then a small difference alone does not end the looking while more pairs could
    still show a gain.
    """
    seen = None
    for number, count in enumerate(policy.look_pairs, 1):
        if len(pairs) < count:
            break
        used = pairs[:count]
        differences = [rms for block, rms in sorted(noise.items()) if block <= used[-1].block]
        if not differences:
            break
        seen = _look(number, [pair.log for pair in used], differences, policy, claimed)
        if seen.settled:
            break
    return seen


def _look(
    number: int,
    logs: Sequence[float],
    differences: Sequence[float],
    policy: SpeedPolicy,
    claimed: bool,
) -> Look:
    interval = stats.t_interval(logs, policy.look_level)
    least = math.log1p(policy.min_floor_percent / 100)
    floor = max(least, stats.noise_floor(differences, len(logs), policy.level))
    # The margin alone: a loud machine must not turn "cannot tell" into "no difference".
    same = math.log1p(policy.equivalence_margin_percent / 100)
    settled = True
    if interval.lower > floor:
        state, reason = State.FASTER, "SPD-FASTER"
    elif interval.upper < -floor:
        state, reason = State.SLOWER, "SPD-SLOWER"
    elif -same < interval.lower and interval.upper < same:
        state, reason = State.EQUIVALENT, "SPD-EQUIVALENT"
        settled = not claimed or interval.upper < floor
    else:
        state, reason = State.INCONCLUSIVE, "SPD-NOISE"
        settled = False
    last = number == len(policy.look_pairs)
    return Look(number, state, reason, interval, floor, settled or last)
