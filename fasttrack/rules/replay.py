"""Replay: base's answers forced on the candidate, position by position, against stock's own noise.

For every position there are base's log-probability of its token and its gap to the runner-up, the
candidate's, and those of base in another batch composition. The gap matters for a model that is
sure of itself: there a log-probability is 0 whatever happens, while a gap moves with the logits.
KL is taken over base's token against all others, a lower bound of the whole (data processing
inequality: Cover and Thomas, Elements of Information Theory, section 2.8). Sequences are clusters.
Judged over all positions and per power of two of the context, so that drift over a long context
shows where it happens. Two faults are looked for, each with its own limit: a small one in most
answers, by the typical answer, which must stay in stock's noise; and a large one in few, by mean
and tail, which may carry the rare tie inside a model that any rounding decides (two experts whose
keys are equal: ADR 20). Owns no measurement: see `evals.replay`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fasttrack import stats
from fasttrack.evals.pairing import Pair
from fasttrack.rules.accuracy import LEVEL, incomplete
from fasttrack.rules.base import Case
from fasttrack.schema import ItemRecord, State, Verdict

TAIL = 0.999
FEWEST = 32
"""Positions of a context band; a band with fewer joins the next."""


@dataclass
class _Change:
    """Changes of one sequence in one arm, over the positions that are looked at."""

    logprob: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)
    """1 where base's token is the likeliest here too."""


def replay(case: Case, name: str, pairs: Sequence[Pair]) -> Iterator[Verdict]:
    """One verdict for all positions, one per band of the context if there are several."""
    cell = f"{name}/replay"
    short = sum(p.replay is None or p.replay_control is None for p in pairs)
    if short:
        yield incomplete(case, cell, f"{short} of {len(pairs)} answers were not replayed")
        return
    for p in pairs:
        for record in (p.replay, p.replay_control):
            if record and tuple(record.token_ids) != tuple(p.base.token_ids):
                detail = f"{record.item} in {record.arm} did not go on from base's tokens"
                yield incomplete(case, cell, detail)
                return
    lost = sum(_lost(p) for p in pairs)
    if lost:
        detail = f"{lost} positions without the numbers that stock reports"
        yield _verdict(case, cell, State.FAIL, "EVAL-DIVERGED", detail, len(pairs))
        return
    yield _judge(case, cell, pairs, 0, 1 << 62)
    bands = _bands(pairs)
    for first, after in bands:
        if len(bands) > 1:
            yield _judge(case, f"{cell}/context={first}-{after - 1}", pairs, first, after)


def _lost(p: Pair) -> int:
    """Positions at which base and its control have both numbers and the candidate lacks one."""
    if p.replay is None or p.replay_control is None:
        return 0
    return sum(
        known and not mine
        for known, mine in zip(_known(p.base, p.replay_control), _known(p.replay), strict=True)
    )


def _known(*records: ItemRecord) -> list[bool]:
    return [
        all(_at(values, i) is not None for r in records for values in (r.logprobs, r.gaps))
        for i in range(len(records[0].token_ids))
    ]


def _at(values: Sequence[float | None], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _bands(pairs: Sequence[Pair]) -> list[tuple[int, int]]:
    """[first, after) positions in the context, by power of two, each with enough positions."""
    counts: dict[int, int] = {}
    for p in pairs:
        for index in range(len(p.base.token_ids)):
            power = (p.base.prompt_tokens + index).bit_length()
            counts[power] = counts.get(power, 0) + 1
    bands: list[tuple[int, int]] = []
    first, held = None, 0
    for power in sorted(counts):
        first = (1 << power >> 1) if first is None else first
        held += counts[power]
        if held >= FEWEST:
            bands.append((first, 1 << power))
            first, held = None, 0
    if first is not None and bands:
        bands[-1] = (bands[-1][0], 1 << max(counts))
    return bands


def _change(base: ItemRecord, other: ItemRecord, first: int, after: int) -> _Change:
    found = _Change()
    for index in range(len(base.token_ids)):
        here, there = _at(base.logprobs, index), _at(other.logprobs, index)
        gap, moved = _at(base.gaps, index), _at(other.gaps, index)
        if first <= base.prompt_tokens + index < after and None not in (here, there, gap, moved):
            assert here is not None and there is not None and gap is not None and moved is not None
            found.logprob.append(abs(there - here))
            found.gap.append(abs(moved - gap))
            found.kl.append(_kl(here, there))
            found.same.append(float(index < len(other.ranks) and other.ranks[index] == 1))
    return found


def _kl(here: float, there: float) -> float:
    """KL divergence, nats, of (token, any other) with log-probabilities `here` from `there`."""
    p, rest = math.exp(here), -math.expm1(here)
    other = -math.expm1(there)
    tail = rest * math.log(rest / other) if rest > 0 and other > 0 else 0.0
    return max(0.0, p * (here - there) + tail)


def _judge(case: Case, cell: str, pairs: Sequence[Pair], first: int, after: int) -> Verdict:
    policy = case.policy.quality
    noise, mine = [], []
    for p in pairs:
        if p.replay is not None and p.replay_control is not None:
            one = _change(p.base, p.replay_control, first, after)
            if one.gap:
                noise.append(one)
                mine.append(_change(p.base, p.replay, first, after))
    if not noise:
        return incomplete(case, cell, "stock reports no log-probabilities to compare")
    count = sum(len(one.gap) for one in mine)
    told, sure, unsure = [], [], []
    for label, ours, theirs in (
        ("log-probability", [m.logprob for m in mine], [n.logprob for n in noise]),
        ("gap", [m.gap for m in mine], [n.gap for n in noise]),
        ("KL", [m.kl for m in mine], [n.kl for n in noise]),
    ):
        means, stocks = ([stats.mean(v) for v in values] for values in (ours, theirs))
        allowed = policy.replay_ratio * stats.median(stocks) + policy.replay_slack
        moved = sum(one > allowed for one in means)
        if stats.mcnemar_harm(moved, len(means) - moved) <= LEVEL:
            sure.append(f"typical {label}")
        elif 2 * moved > len(means):
            unsure.append(f"typical {label}")
        mean, stock = stats.mean(means), stats.mean(stocks)
        allowed = policy.replay_ratio * stock + policy.tie_slack * policy.tie_share
        upper = stats.t_interval(means, LEVEL).upper if len(means) > 1 else mean
        if mean > allowed:
            sure.append(f"mean {label}")
        elif upper > allowed:
            unsure.append(f"mean {label}")
        told.append(
            f"{label} {mean:.2g}, typically {stats.median(means):.2g} "
            f"(stock {stock:.2g}, {stats.median(stocks):.2g})"
        )
    tail, stock_tail = _tail([m.gap for m in mine]), _tail([n.gap for n in noise])
    allowed = policy.replay_ratio * stock_tail + policy.tie_slack
    told.append(f"p99.9 of the gap {tail:.2g} (stock {stock_tail:.2g})")
    if tail > allowed:
        sure.append("p99.9 of the gap")
    fewer = [stats.mean(n.same) - stats.mean(m.same) for m, n in zip(mine, noise, strict=True)]
    share = stats.mean([value for m in mine for value in m.same])
    told.append(f"same likeliest token {share:.2%}")
    if len(fewer) > 1 and stats.t_interval(fewer, LEVEL).lower > 0:
        sure.append("likeliest token")
    state, reason = State.PASS, "OK"
    if sure:
        state, reason = State.FAIL, "EVAL-DIVERGED"
    elif unsure:
        state, reason = State.INCONCLUSIVE, "EVAL-POWER"
    blame = f"{', '.join(sure or unsure)} beyond stock's: " if sure or unsure else ""
    detail = f"{blame}{count} positions, mean change of {'; '.join(told)}"
    return _verdict(case, cell, state, reason, detail, len(mine), tail, allowed)


def _tail(sequences: Sequence[Sequence[float]]) -> float:
    """The 99.9th percentile (nearest rank) of all values."""
    values = sorted(value for one in sequences for value in one)
    return values[max(0, math.ceil(TAIL * len(values)) - 1)]


def _verdict(
    case: Case, cell: str, state: State, reason: str, detail: str, count: int,
    estimate: float | None = None, floor: float | None = None,
) -> Verdict:  # fmt: skip
    return Verdict(
        rule="quality",
        cell=cell,
        state=state,
        reason=reason,
        detail=detail,
        estimate=estimate,
        floor=floor,
        unit="nats",
        n=count,
        next="" if state is State.PASS else case.reproduce("evals"),
    )
