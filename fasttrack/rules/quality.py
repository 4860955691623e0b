"""Evals: item-paired accuracy, and token-level divergence against a stock-stock control."""

from __future__ import annotations

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
    compared: int
    """Log-probabilities that both answers report."""
    lost: int
    """Log-probabilities that the first reports and the other does not."""


def _drift(one: ItemRecord, other: ItemRecord) -> _Drift:
    common = first_difference(one.token_ids, other.token_ids)
    logprobs = _changes(one.logprobs, other.logprobs, common)
    reported = sum(value is not None for value in one.logprobs[:common])
    return _Drift(
        logprob=max(logprobs, default=0.0),
        gap=max(_changes(one.gaps, other.gaps, common), default=0.0),
        compared=len(logprobs),
        lost=reported - len(logprobs),
    )


def _changes(
    one: Sequence[float | None], other: Sequence[float | None], common: int
) -> list[float]:
    """Changes where both are known: what stock does not report must not widen its noise."""
    pairs = zip(one[:common], other[:common], strict=False)
    return [abs(a - b) for a, b in pairs if a is not None and b is not None]


def _divergence(case: Case, name: str, pairs: Sequence[Pair]) -> Verdict:
    """Tokens part only where stock itself is undecided, and log-probabilities stay in its band."""
    policy = case.policy.quality
    noise = [_drift(p.base, p.control) for p in pairs if p.control is not None]
    if len(noise) < len(pairs):
        return _incomplete(case, name, f"{len(noise)} stock-stock controls of {len(pairs)}")
    if not any(d.compared for d in noise):
        return _incomplete(case, name, "stock reports no log-probabilities to compare")
    noise_gap = max(d.gap for d in noise)
    noise_logprob = max(d.logprob for d in noise)
    allowed = policy.divergence_ratio * noise_logprob + policy.divergence_slack
    partings = [_parting(p.base, p.candidate, noise_gap) for p in pairs]
    parted = [f"{p.base.item} {told}" for p, told in zip(pairs, partings, strict=True) if told]
    excused = sum(told == "" for told in partings)
    stock_parted = sum(bool(_parting(p.base, p.control, noise_gap)) for p in pairs if p.control)
    drifts = [_drift(p.base, p.candidate) for p in pairs]
    drift = max(d.logprob for d in drifts)
    lost = sum(d.lost for d in drifts)
    tokens = sum(len(p.base.token_ids) for p in pairs)
    if parted:
        # One or two may be a tie inside the model, e.g. of two experts: not proved, not refuted.
        chance = stats.fisher_upper_tail(len(parted), stock_parted, len(pairs))
        certain = chance <= policy.parting_level
        state = State.FAIL if certain else State.INCONCLUSIVE
        reason = "EVAL-DIVERGED" if certain else "EVAL-PARTED"
        detail = (
            f"{len(parted)} of {len(pairs)} answers part: {'; '.join(parted[:3])}; noise gap "
            f"{noise_gap:.3g}, stock against stock {stock_parted}, p = {chance:.2g}"
        )
    elif lost:
        state, reason = State.FAIL, "EVAL-DIVERGED"
        detail = f"{lost} log-probabilities that stock reports are missing"
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
        estimate=drift,
        floor=allowed,
        unit="nats",
        n=len(pairs),
        next="" if state is State.PASS else case.reproduce("evals"),
    )


def _parting(one: ItemRecord, other: ItemRecord, noise_gap: float) -> str | None:
    """Where two answers part; empty if the model was undecided there, None if they do not part."""
    position = first_difference(one.token_ids, other.token_ids)
    if position == len(one.token_ids) == len(other.token_ids):
        return None
    ended = position in (len(one.token_ids), len(other.token_ids))
    gap = one.gaps[position] if position < len(one.gaps) and not ended else None
    if gap is not None and gap <= noise_gap:
        return ""
    told = "one ends" if ended else "gap unknown" if gap is None else f"gap {gap:.3g}"
    return f"at token {position} ({told})"


def _incomplete(case: Case, name: str, detail: str) -> Verdict:
    return Verdict(
        rule="quality",
        cell=f"{name}/divergence",
        state=State.INCOMPLETE,
        reason="EVAL-INCOMPLETE",
        detail=detail,
        next=case.reproduce("evals"),
    )


RULES = (Rule("quality", "evals", judge),)
