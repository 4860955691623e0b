"""Evals: item-paired accuracy, and token-level divergence against a stock-stock control."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fasttrack import stats
from fasttrack.evals.pairing import Pair, Unpaired, first_difference, pair
from fasttrack.rules.base import Case, Rule, missing
from fasttrack.schema import ItemRecord, State, Verdict


def judge(case: Case) -> Iterator[Verdict]:
    """Two verdicts per eval: accuracy and divergence."""
    records = case.records(ItemRecord)
    names = dict.fromkeys(record.eval for record in records)
    if not names:
        yield missing("quality", "evals", case, "evals")
    for name in names:
        try:
            pairs = pair([record for record in records if record.eval == name])
        except Unpaired as error:
            yield Verdict(
                rule="quality",
                cell=name,
                state=State.INCOMPLETE,
                reason="EVAL-INCOMPLETE",
                detail=str(error),
                next=case.reproduce("evals"),
            )
            continue
        yield _accuracy(case, name, pairs)
        yield _divergence(case, name, pairs)


def _accuracy(case: Case, name: str, pairs: Sequence[Pair]) -> Verdict:
    """Non-inferiority of the mean item difference, candidate minus base."""
    margin = case.policy.quality.accuracy_margin
    base_mean = stats.mean([p.base.score for p in pairs])
    difference = [p.candidate.score - p.base.score for p in pairs]
    interval = stats.t_interval(difference, 0.05) if len(pairs) > 1 else None
    deciding = True
    if interval is None:
        state, reason = State.INCONCLUSIVE, "EVAL-POWER"
    elif base_mean == 0.0 and interval.estimate <= 0.0:
        # A base that answers nothing right cannot show a loss: say so instead of passing.
        state, reason = State.INSENSITIVE, "EVAL-FLOOR"
        deciding = case.target.role != "development"
    elif interval.lower > -margin:
        worse = interval.upper < 0
        state = State.NON_INFERIOR_BUT_WORSE if worse else State.NON_INFERIOR
        reason = "EVAL-WORSE" if worse else "OK"
    elif interval.upper < 0:
        state, reason = State.INFERIOR, "EVAL-WORSE"
    else:
        state, reason = State.INCONCLUSIVE, "EVAL-POWER"
    return Verdict(
        rule="quality",
        cell=f"{name}/accuracy",
        state=state,
        reason=reason,
        detail=f"base scores {base_mean:.3f}, candidate "
        f"{stats.mean([p.candidate.score for p in pairs]):.3f}, margin {margin:g}",
        deciding=deciding,
        estimate=interval.estimate if interval else None,
        lower=interval.lower if interval else None,
        upper=interval.upper if interval else None,
        unit="score difference",
        n=len(pairs),
        next="" if reason == "OK" else case.reproduce("evals"),
    )


@dataclass(frozen=True)
class _Drift:
    """How far two answers to one prompt are apart on their common prefix."""

    logprob: float
    gap: float


def _drift(one: ItemRecord, other: ItemRecord) -> _Drift:
    common = first_difference(one.token_ids, other.token_ids)
    return _Drift(
        logprob=_largest(one.logprobs[:common], other.logprobs[:common]),
        gap=_largest(one.gaps[:common], other.gaps[:common]),
    )


def _largest(one: Sequence[float | None], other: Sequence[float | None]) -> float:
    changes = [
        math.inf if a is None or b is None else abs(a - b) for a, b in zip(one, other, strict=False)
    ]
    return max(changes, default=0.0)


def _divergence(case: Case, name: str, pairs: Sequence[Pair]) -> Verdict:
    """Tokens part only where stock itself is undecided, and log-probabilities stay in its band."""
    policy = case.policy.quality
    controls = [p for p in pairs if p.control is not None]
    if not controls:
        return Verdict(
            rule="quality",
            cell=f"{name}/divergence",
            state=State.INCOMPLETE,
            reason="EVAL-INCOMPLETE",
            detail="no stock-stock control was run",
            next=case.reproduce("evals"),
        )
    noise = [_drift(p.base, p.control) for p in controls if p.control is not None]
    noise_gap = max(d.gap for d in noise)
    noise_logprob = max(d.logprob for d in noise)
    allowed = policy.divergence_ratio * noise_logprob + policy.divergence_slack
    parted, excused = [], 0
    for p in pairs:
        position = first_difference(p.base.token_ids, p.candidate.token_ids)
        if position == len(p.base.token_ids) == len(p.candidate.token_ids):
            continue
        gap = p.base.gaps[position] if position < len(p.base.gaps) else None
        if gap is not None and gap <= noise_gap:
            excused += 1
        else:
            told = "unknown" if gap is None else f"{gap:.3g}"
            parted.append(f"{p.base.item} at token {position} (gap {told})")
    drift = max(_drift(p.base, p.candidate).logprob for p in pairs)
    tokens = sum(len(p.base.token_ids) for p in pairs)
    if parted:
        state, reason = State.FAIL, "EVAL-DIVERGED"
        detail = f"{len(parted)} answers part: {'; '.join(parted[:3])}; noise gap {noise_gap:.3g}"
    elif drift > allowed:
        state, reason = State.FAIL, "EVAL-DIVERGED"
        detail = f"log-probability moved {drift:.3g} nats, stock-stock {noise_logprob:.3g}"
    else:
        state, reason = State.PASS, "OK"
        detail = (
            f"{tokens} tokens in {len(pairs)} answers, {excused} parted at a tie; largest "
            f"log-probability change {drift:.2g} nats, stock-stock {noise_logprob:.2g}"
        )
    return Verdict(
        rule="quality",
        cell=f"{name}/divergence",
        state=state,
        reason=reason,
        detail=detail,
        estimate=drift if math.isfinite(drift) else None,
        floor=allowed if math.isfinite(allowed) else None,
        unit="nats",
        n=len(pairs),
        next="" if state is State.PASS else case.reproduce("evals"),
    )


RULES = (Rule("quality", "evals", judge),)
