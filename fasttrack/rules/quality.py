"""Evals: item-paired accuracy, and token-level divergence against a stock-stock control.

Owns the divergence of freely generated answers; `accuracy` owns scores and lengths, and
`replay` what is forced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fasttrack import stats
from fasttrack.evals.pairing import Pair, Unpaired, first_difference, pair
from fasttrack.evals.tasks import registry
from fasttrack.rules.accuracy import accuracy, alarms, incomplete, length
from fasttrack.rules.base import Case, Rule, missing
from fasttrack.rules.replay import replay
from fasttrack.schema import ItemRecord, State, Verdict


def judge(case: Case) -> Iterator[Verdict]:
    """Per eval: accuracy in its cells, harm alarm, length, divergence and replay."""
    records = case.records(ItemRecord)
    names = dict.fromkeys(record.eval for record in records)
    if not names:
        yield missing("quality", "evals", case, "evals")
    embedded = {task.name: task for task in registry()}
    scored: dict[str, tuple[Pair, ...]] = {}
    for name in names:
        try:
            pairs = pair([record for record in records if record.eval == name])
        except Unpaired as error:
            yield incomplete(case, name, str(error))
            continue
        if name not in embedded or embedded[name].judged:
            scored[name] = pairs
            yield from accuracy(case, name, pairs)
        yield length(case, name, pairs)
        yield _divergence(case, name, pairs)
        if name in embedded or any(p.replay for p in pairs):
            yield from replay(case, name, pairs)
    yield from alarms(case, scored)


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
        detail = f"{len(noise)} stock-stock controls of {len(pairs)}"
        return incomplete(case, f"{name}/divergence", detail)
    if not any(d.compared for d in noise):
        detail = "stock reports no log-probabilities to compare"
        return incomplete(case, f"{name}/divergence", detail)
    undecided = max(d.gap for d in noise) + policy.tie_slack
    noise_logprob = max(d.logprob for d in noise)
    allowed = policy.divergence_ratio * noise_logprob + policy.tie_slack
    partings = [_parting(p.base, p.candidate, undecided) for p in pairs]
    parted = [f"{p.base.item} {told}" for p, told in zip(pairs, partings, strict=True) if told]
    excused = sum(told == "" for told in partings)
    stock_parted = sum(bool(_parting(p.base, p.control, undecided)) for p in pairs if p.control)
    drifts = [_drift(p.base, p.candidate) for p in pairs]
    drift = max(d.logprob for d in drifts)
    typical, stock = (stats.median([d.logprob for d in some]) for some in (drifts, noise))
    lost = sum(d.lost for d in drifts)
    tokens = sum(len(p.base.token_ids) for p in pairs)
    if parted:
        # One or two may be a wide tie inside the model: not proved, not refuted.
        chance = stats.fisher_upper_tail(len(parted), stock_parted, len(pairs))
        certain = chance <= policy.parting_level
        state = State.FAIL if certain else State.INCONCLUSIVE
        reason = "EVAL-DIVERGED" if certain else "EVAL-PARTED"
        detail = (
            f"{len(parted)} of {len(pairs)} answers part: {'; '.join(parted[:3])}; "
            f"undecided below {undecided:.3g}, stock against stock {stock_parted}, p = {chance:.2g}"
        )
    elif lost:
        state, reason = State.FAIL, "EVAL-DIVERGED"
        detail = f"{lost} log-probabilities that stock reports are missing"
    elif drift > allowed or typical > policy.divergence_ratio * stock + policy.divergence_slack:
        state, reason = State.FAIL, "EVAL-DIVERGED"
        detail = (
            f"log-probability moved {drift:.3g} nats, typically {typical:.3g}; "
            f"stock-stock {noise_logprob:.3g}, {stock:.3g}"
        )
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


def _parting(one: ItemRecord, other: ItemRecord, undecided: float) -> str | None:
    """Where two answers part; empty if the model was undecided there, None if they do not part."""
    position = first_difference(one.token_ids, other.token_ids)
    if position == len(one.token_ids) == len(other.token_ids):
        return None
    ended = position in (len(one.token_ids), len(other.token_ids))
    gap = one.gaps[position] if position < len(one.gaps) and not ended else None
    if gap is not None and gap <= undecided:
        return ""
    told = "one ends" if ended else "gap unknown" if gap is None else f"gap {gap:.3g}"
    return f"at token {position} ({told})"


RULES = (Rule("quality", "evals", judge),)
