"""How far two answers to one prompt lie apart, against how far stock's own answers do.

Owns the band of log-probabilities; where answers part is for each rule to judge, in its own words.
Read by `quality` and `proof`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fasttrack import stats
from fasttrack.evals.pairing import first_difference
from fasttrack.schema.policy import QualityPolicy


class Answer(Protocol):
    """What an answer of any record tells."""

    @property
    def token_ids(self) -> Sequence[int]:
        """The tokens."""
        ...

    @property
    def logprobs(self) -> Sequence[float | None]:
        """Log-probability of each token, nats; None where it is not reported."""
        ...

    @property
    def gaps(self) -> Sequence[float | None]:
        """Log-probability distance between the two likeliest tokens at each position, nats."""
        ...


@dataclass(frozen=True)
class Drift:
    """How far two answers are apart on their common prefix."""

    logprob: float
    """Largest change of log-probability, nats."""
    gap: float
    """Largest change of a gap, nats."""
    compared: int
    """Log-probabilities that both answers report."""
    lost: int
    """Log-probabilities that the first reports and the other does not."""
    parting_gap: float
    """Gap where the answers part, nats: 0 if they do not, infinite if unknown or if one ends."""


def drift(one: Answer, other: Answer) -> Drift:
    """Of two answers, base's or the undisturbed one first."""
    common = first_difference(one.token_ids, other.token_ids)
    logprobs = _changes(one.logprobs, other.logprobs, common)
    return Drift(
        logprob=max(logprobs, default=0.0),
        gap=max(_changes(one.gaps, other.gaps, common), default=0.0),
        compared=len(logprobs),
        lost=sum(value is not None for value in one.logprobs[:common]) - len(logprobs),
        parting_gap=_parting_gap(one, other, common),
    )


def _parting_gap(one: Answer, other: Answer, common: int) -> float:
    lengths = len(one.token_ids), len(other.token_ids)
    if common == max(lengths):
        return 0.0
    gap = one.gaps[common] if common < min(*lengths, len(one.gaps)) else None
    return float("inf") if gap is None else gap


def _changes(
    one: Sequence[float | None], other: Sequence[float | None], common: int
) -> list[float]:
    """Changes where both are known: what stock does not report must not widen its noise."""
    pairs = zip(one[:common], other[:common], strict=False)
    return [abs(a - b) for a, b in pairs if a is not None and b is not None]


@dataclass(frozen=True)
class Band:
    """What stock's own answers leave open. All in nats."""

    worst: float
    """Largest change of log-probability among stock's."""
    typical: float
    """Median over stock's answers of their largest change."""
    undecided: float
    """Gap below which two tokens are a tie."""
    allowed: float
    """Largest change of log-probability a candidate may show."""


def band(noise: Sequence[Drift], policy: QualityPolicy) -> Band:
    """The band of stock's drifts, at least one."""
    worst = max(d.logprob for d in noise)
    return Band(
        worst=worst,
        typical=stats.median([d.logprob for d in noise]),
        undecided=max(d.gap for d in noise) + policy.tie_slack,
        allowed=policy.divergence_ratio * worst + policy.tie_slack,
    )


def outside(drifts: Sequence[Drift], stock: Band, policy: QualityPolicy) -> str:
    """Why a candidate's drifts leave stock's band, worst or typical; empty if they do not."""
    worst = max(d.logprob for d in drifts)
    typical = stats.median([d.logprob for d in drifts])
    allowed = policy.divergence_ratio * stock.typical + policy.divergence_slack
    if worst <= stock.allowed and typical <= allowed:
        return ""
    return (
        f"log-probability moved {worst:.3g} nats, typically {typical:.3g}; stock's own "
        f"{stock.worst:.3g}, {stock.typical:.3g}"
    )
