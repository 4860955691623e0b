"""How often the speed rule finds a gain, by simulation: the figure and table of `docs/power.md`.

Simulated are engine boots: log-normal times, two base and two candidate boots per block, judged by
the very function that the rule uses. Owns the drawing too. Read by `docs/build.py`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import cache

from fasttrack.rules import looks
from fasttrack.schema import Policy, State

RUNS = 1000
BLOCKS = 6
NOISES = (0.3, 0.5, 1.0, 1.5, 2.0)
"""Standard deviation of one pair's log ratio, percent."""
GAINS = (-3.0, -2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
"""True gains, percent."""
COLOURS = ("#1b7837", "#5aae61", "#2166ac", "#b2182b", "#762a83")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 380, 56, 120, 24, 48


@dataclass(frozen=True)
class Point:
    """What became of the runs of one true gain at one noise: shares, and pairs on average."""

    faster: float
    slower: float
    equivalent: float
    pairs: float


@cache
def simulate(gain: float, noise: float, runs: int = RUNS, claimed: bool = True) -> Point:
    """Sweeps of one cell: `gain` and `noise` in percent, `noise` of one pair of boots."""
    rng = random.Random(f"{gain}/{noise}")
    policy = Policy().speed
    boot = noise / 100 / math.sqrt(2)
    true = math.log1p(gain / 100)
    states: Counter[State] = Counter()
    used = 0
    for _ in range(runs):
        pairs, spread = [], {}
        for block in range(BLOCKS):
            a1, a2, b1, b2 = (rng.gauss(0, boot) for _ in range(4))
            pairs += [looks.Pair(block, a1 - b1 + true), looks.Pair(block, a2 - b2 + true)]
            spread[block] = abs(a1 - a2)
        seen = looks.decide(pairs, spread, policy, claimed)
        assert seen is not None
        states[seen.state] += 1
        used += seen.interval.n
    share = {state: states[state] / runs for state in State}
    return Point(share[State.FASTER], share[State.SLOWER], share[State.EQUIVALENT], used / runs)


def page() -> str:
    """`power.md`."""
    policy = Policy().speed
    planned = ", ".join(map(str, policy.look_pairs))
    lines = [
        "# Power of the speed rule",
        "",
        f"Written by `make docs`; do not edit. {RUNS} simulated sweeps per entry, judged by the",
        f"rule's own function: looks after {planned} valid pairs of engine boots, each at a",
        f"one-sided level of {100 * policy.look_level:.2f} % ({100 * policy.level:g} % over all), "
        f"and a noise floor of at",
        f"least {policy.min_floor_percent:g} %. Noise is the standard deviation of one pair's log "
        "ratio.",
        "",
        "![Share of sweeps that are called faster](power.svg)",
        "",
        "| noise | " + " | ".join(f"{gain:+g} %" for gain in GAINS) + " |",
        "|---" * (len(GAINS) + 1) + "|",
    ]
    for noise in NOISES:
        told = []
        for gain in GAINS:
            point = simulate(gain, noise)
            told.append(f"{100 * point.faster:.1f} / {100 * point.slower:.1f} / {point.pairs:.1f}")
        lines.append(f"| {noise:g} % | " + " | ".join(told) + " |")
    lines += [
        "",
        "Entries: % called FASTER / % called SLOWER / pairs used on average. A column of no gain",
        "shows the false claims. A sweep that is called neither is EQUIVALENT or INCONCLUSIVE.",
        "",
    ]
    return "\n".join(lines)


def figure() -> str:
    """`power.svg`: share called FASTER over the true gain, a line per noise."""
    low, high = GAINS[0], GAINS[-1]

    def x(gain: float) -> float:
        return LEFT + (gain - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img">',
        "<title>Share of simulated sweeps called FASTER, by true gain and noise of a pair</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for share in (0.0, 0.05, 0.5, 0.95, 1.0):
        parts.append(
            f'<path d="M{x(low):.1f} {y(share):.1f}H{x(high):.1f}" stroke="#d0d0d0"/>'
            f'<text x="{LEFT - 6}" y="{y(share) + 4:.1f}" text-anchor="end">'
            f"{100 * share:g} %</text>"
        )
    for gain in range(int(low), int(high) + 1):
        parts.append(
            f'<text x="{x(gain):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{gain:+d} %</text>"
        )
    parts.append(
        f'<text x="{(x(low) + x(high)) / 2:.1f}" y="{HEIGHT - 10}" text-anchor="middle">'
        "true gain</text>"
    )
    for index, (noise, colour) in enumerate(zip(NOISES, COLOURS, strict=True)):
        points = [f"{x(gain):.1f} {y(simulate(gain, noise).faster):.1f}" for gain in GAINS]
        parts.append(
            f'<path d="M{"L".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 18 * index + 12}" fill="{colour}">'
            f"noise {noise:g} %</text>"
        )
    parts.append("</svg>\n")
    return "\n".join(parts)
