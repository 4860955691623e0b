"""Pure numbers: intervals, paired ratios, non-inferiority. No I/O, no records, no dependencies.

Read by rules and, through them, by the verifier, which must get the same digits everywhere:
only `math`, only deterministic summation (`math.fsum`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; raises `ValueError` for no values."""
    if not values:
        raise ValueError("mean of nothing")
    return math.fsum(values) / len(values)


def sd(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1); raises `ValueError` for fewer than two values."""
    if len(values) < 2:
        raise ValueError("standard deviation needs two values")
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def median(values: Sequence[float]) -> float:
    """Middle value, or the mean of the two middle ones."""
    if not values:
        raise ValueError("median of nothing")
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them lies, between neighbours in proportion.

    As numpy's `percentile` by default, so as vLLM's and aiperf's benchmarks print it.
    """
    if not values:
        raise ValueError("quantile of nothing")
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (modified Lentz)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            c = 1.0 + numerator / c
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            result *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return result


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b) for a, b > 0 and 0 <= x <= 1."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def t_upper_tail(t: float, df: int) -> float:
    """P(T > t) for Student's t with `df` degrees of freedom."""
    tail = 0.5 * incomplete_beta(df / 2.0, 0.5, df / (df + t * t))
    return tail if t >= 0 else 1.0 - tail


@cache
def t_quantile(level: float, df: int) -> float:
    """The t with P(T > t) = `level`, 0 < level < 0.5, by bisection to full precision."""
    if not 0.0 < level < 0.5 or df < 1:
        raise ValueError("level must lie in (0, 0.5) and df be positive")
    low, high = 0.0, 1.0
    while t_upper_tail(high, df) > level:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if t_upper_tail(middle, df) > level else (low, middle)
    return high


@dataclass(frozen=True)
class Interval:
    """Mean with one-sided bounds at `level` on each side; `n` values, n - 1 degrees of freedom."""

    estimate: float
    lower: float
    upper: float
    n: int


def t_interval(values: Sequence[float], level: float) -> Interval:
    """Student's t interval: each bound holds with probability 1 - level.

    Raises `ValueError` for fewer than two values.
    """
    centre = mean(values)
    half = t_quantile(level, len(values) - 1) * sd(values) / math.sqrt(len(values))
    return Interval(centre, centre - half, centre + half, len(values))


def bootstrap_interval(values: Sequence[float], level: float, draws: int = 999) -> Interval:
    """Studentised bootstrap interval of the mean; bounds as of `t_interval`, without its normality.

    `values`: one per cluster. A resample of equal values has no t and is drawn again. The seed is
    fixed: the same values give the same bounds everywhere. Raises `ValueError` for fewer than two.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 12.5.
    """
    centre, spread, count = mean(values), sd(values), len(values)
    if spread == 0.0:
        return Interval(centre, centre, centre, count)
    rng = random.Random(f"{count}/{draws}")
    ratios: list[float] = []
    while len(ratios) < draws:
        drawn = rng.choices(values, k=count)
        error = sd(drawn) / math.sqrt(count)
        if error > 0.0:
            ratios.append((mean(drawn) - centre) / error)
    ratios.sort()
    cut = max(1, math.floor(level * (draws + 1)))
    error = spread / math.sqrt(count)
    return Interval(
        centre, centre - ratios[draws - cut] * error, centre - ratios[cut - 1] * error, count
    )


def mcnemar_harm(harmed: int, helped: int) -> float:
    """P(at least `harmed` of all discordant pairs are harm) if harm and help were equally likely.

    McNemar's exact test, one-sided: the upper tail of the binomial with probability a half.
    """
    pairs = harmed + helped
    ways = sum(math.comb(pairs, k) for k in range(harmed, pairs + 1))
    return float(ways / 2**pairs)


def pairs_needed(spread: float, margin: float) -> int:
    """Pairs with this standard deviation of differences that show non-inferiority with 80 % power.

    At a one-sided level of 5 %, if the arms are equal: ((1.645 + 0.842) * spread / margin) ** 2.
    """
    return max(2, math.ceil((2.4865 * spread / margin) ** 2))


def unseen_rate(n: int, level: float) -> float:
    """The largest rate of an event that stays unseen in `n` trials with probability `level`."""
    return float(1.0 - level ** (1.0 / n))


def fisher_upper_tail(mine: int, other: int, n: int) -> float:
    """P(at least `mine` of the events fall on this side), of `mine + other` over two groups of n.

    Fisher's exact test, one-sided: 0 <= mine, other <= n. 1 when there are no events.
    """
    events = mine + other
    ways = math.comb(2 * n, events)
    tail = sum(math.comb(n, k) * math.comb(n, events - k) for k in range(mine, min(n, events) + 1))
    return tail / ways


def noise_floor(differences: Sequence[float], pairs: int, level: float) -> float:
    """Half-width that `pairs` pairs of base against base would show.

    `differences`: per block, the log value of its first base boot less that of its second. Their
    expectation is 0 and their variance twice a boot's, so k of them estimate it with k degrees of
    freedom; drift from block to block does not enter. Raises `ValueError` for no difference.
    """
    if not differences:
        raise ValueError("a noise floor needs a block with two base boots")
    count = len(differences)
    boot = math.sqrt(math.fsum(d * d for d in differences) / (2 * count))
    return t_quantile(level, count) * boot * math.sqrt(2.0 / pairs)


def chi_squared_upper_tail(value: float, df: int) -> float:
    """P(X > value) for chi-squared with `df` degrees of freedom; 1 for df = 0.

    The regularised upper incomplete gamma function Q(df/2, value/2): its series below the mean,
    its continued fraction (modified Lentz) above. Source: Abramowitz and Stegun, 6.5.29, 6.5.31.
    """
    if df < 1 or value <= 0.0:
        return 1.0
    a, x = df / 2.0, value / 2.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        for k in range(1, 10_000):
            term *= x / (a + k)
            total += term
            if term < total * 1e-17:
                break
        return 1.0 - front * total
    tiny = 1e-300
    b = x + 1.0 - a
    c, d = 1.0 / tiny, 1.0 / b
    result = d
    for k in range(1, 10_000):
        factor = -k * (k - a)
        b += 2.0
        d = factor * d + b
        c = b + factor / c
        d = 1.0 / (d if abs(d) > tiny else tiny)
        c = c if abs(c) > tiny else tiny
        result *= d * c
        if abs(d * c - 1.0) < 1e-16:
            break
    return front * result


@dataclass(frozen=True)
class GTest:
    """A likelihood-ratio statistic, chi-squared with `df` degrees of freedom; 0 and 0 for none."""

    statistic: float
    df: int


def two_sample_g(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> GTest:
    """Whether two sets of sequences draw from the same classes equally often.

    Each sequence gives its counts per class, neighbouring classes being alike; classes are joined
    until five draws are expected of each side. Draws of one sequence may depend on each other,
    which widens the counts: G is divided by the mean design effect of the pooled sequences, where
    that is above 1 (first-order correction of Rao and Scott, Annals of Statistics 12, 1984).
    """
    pooled = [sum(column) for column in zip(*ours, *theirs, strict=True)]
    mine = [sum(column) for column in zip(*ours, strict=True)]
    total, part = sum(pooled), sum(mine)
    smaller = min(part, total - part)
    groups: list[list[int]] = [[]]
    for index in range(len(pooled)):
        groups[-1].append(index)
        if total and sum(pooled[i] for i in groups[-1]) * smaller >= 5 * total:
            groups.append([])
    rest = groups.pop()
    if groups:
        groups[-1] += rest
    if len(groups) < 2:
        return GTest(0.0, 0)
    g = 0.0
    effect = []
    lanes = [*ours, *theirs]
    for group in groups:
        share = sum(pooled[i] for i in group) / total
        for side, size in (
            (mine, part),
            ([p - m for p, m in zip(pooled, mine, strict=True)], total - part),
        ):
            seen = sum(side[i] for i in group)
            if seen:
                g += 2.0 * seen * math.log(seen / (share * size))
        spread = math.fsum(
            (sum(lane[i] for i in group) - share * sum(lane)) ** 2 for lane in lanes
        ) / (1.0 - 1.0 / len(lanes))
        effect.append(spread / (total * share))
    df = len(groups) - 1
    return GTest(g / max(1.0, math.fsum(effect) / df), df)


def holm(chances: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given: all below a level are rejected at that level.

    Source: Holm, Scandinavian Journal of Statistics 6, 1979.
    """
    adjusted = [1.0] * len(chances)
    least = 0.0
    ordered = sorted(range(len(chances)), key=lambda index: chances[index])
    for place, index in enumerate(ordered):
        least = max(least, min(1.0, chances[index] * (len(chances) - place)))
        adjusted[index] = least
    return adjusted
