"""Evals: item-paired accuracy, and token-level divergence against a stock-stock control.

Owns the divergence of freely generated answers; `accuracy` owns scores and lengths, and
`replay` what is forced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fasttrack import stats
from fasttrack.evals.pairing import Pair, Unpaired, first_difference, pair
from fasttrack.evals.tasks import registry
from fasttrack.rules.accuracy import accuracy, alarms, incomplete, length
from fasttrack.rules.base import Case, Rule, missing
from fasttrack.rules.drift import band, drift, outside
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


def _divergence(case: Case, name: str, pairs: Sequence[Pair]) -> Verdict:
    """Tokens part only where stock itself is undecided, and log-probabilities stay in its band."""
    policy = case.policy.quality
    noise = [drift(p.base, p.control) for p in pairs if p.control is not None]
    if len(noise) < len(pairs):
        detail = f"{len(noise)} stock-stock controls of {len(pairs)}"
        return incomplete(case, f"{name}/divergence", detail)
    if not any(d.compared for d in noise):
        detail = "stock reports no log-probabilities to compare"
        return incomplete(case, f"{name}/divergence", detail)
    stock = band(noise, policy)
    partings = [_parting(p.base, p.candidate, stock.undecided) for p in pairs]
    parted = [f"{p.base.item} {told}" for p, told in zip(pairs, partings, strict=True) if told]
    excused = sum(told == "" for told in partings)
    stock_parted = sum(
        bool(_parting(p.base, p.control, stock.undecided)) for p in pairs if p.control
    )
    drifts = [drift(p.base, p.candidate) for p in pairs]
    moved = max(d.logprob for d in drifts)
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
            f"undecided below {stock.undecided:.3g}, stock against stock {stock_parted}, "
            f"p = {chance:.2g}"
        )
    elif lost:
        state, reason = State.FAIL, "EVAL-DIVERGED"
        detail = f"{lost} log-probabilities that stock reports are missing"
    elif left := outside(drifts, stock, policy):
        state, reason, detail = State.FAIL, "EVAL-DIVERGED", left
    else:
        state, reason = State.PASS, "OK"
        detail = (
            f"{tokens} tokens in {len(pairs)} answers, {excused} parted at a tie; largest "
            f"log-probability change {moved:.2g} nats, stock-stock {stock.worst:.2g}"
        )
    return Verdict(
        rule="quality",
        cell=f"{name}/divergence",
        state=state,
        reason=reason,
        detail=detail,
        estimate=moved,
        floor=stock.allowed,
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
