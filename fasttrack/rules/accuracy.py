"""Accuracy and length of answers, item by item: non-inferiority, harm alarm, equivalence.

Each eval is judged as a whole, per length of its prompts, and once more with one request at a time:
some faults need company, others need none. Items are the clusters; samples of one item are
averaged. Owns no divergence of tokens, which is `quality`'s.
Sources: Student's t bound and bootstrap as in `stats`; harm alarm: McNemar, Psychometrika 12, 1947;
equivalence by two one-sided tests: Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from fasttrack import stats
from fasttrack.evals.pairing import Pair
from fasttrack.rules.base import Case
from fasttrack.schema import ItemRecord, State, Verdict

LEVEL = 0.05
"""Of each one-sided bound."""
SURE = 0.01
"""Level at which an eval is called inferior: a run has many cells, and each could by chance."""
ALONE = "concurrency=1"
SAMPLE_MARK = "#"
"""Stands between an item's name and the number of its sample."""
Answers = tuple[ItemRecord, ItemRecord]
"""Base's and the candidate's answer to one question."""


def accuracy(case: Case, name: str, pairs: Sequence[Pair]) -> Iterator[Verdict]:
    """Non-inferiority: all items, items per bin of prompt length, and all once more one by one."""
    together = [(p.base, p.candidate) for p in pairs]
    yield _accuracy(case, f"{name}/accuracy", together)
    bins = length_bins(together)
    for label, answers in bins.items():
        if len(bins) > 1:
            yield _accuracy(case, f"{name}/accuracy/{label}", answers)
    alone = [p.alone for p in pairs if p.alone]
    cell = f"{name}/accuracy/{ALONE}"
    if len(alone) < len(pairs):
        detail = f"{len(alone)} of {len(pairs)} items were asked one at a time in both arms"
        yield incomplete(case, cell, detail)
    else:
        yield _accuracy(case, cell, alone)


def incomplete(case: Case, cell: str, detail: str) -> Verdict:
    """Answers that the rule needs are not there."""
    return Verdict(
        rule="quality",
        cell=cell,
        state=State.INCOMPLETE,
        reason="EVAL-INCOMPLETE",
        detail=detail,
        next=case.reproduce("evals"),
    )


def length_bins(answers: Sequence[Answers]) -> dict[str, list[Answers]]:
    """Answers by power of two of their prompt's tokens; a bin of one item joins its neighbour."""
    ordered = sorted(answers, key=lambda one: one[0].prompt_tokens)
    groups: list[list[Answers]] = []
    for _, members in groupby(ordered, key=lambda one: one[0].prompt_tokens.bit_length()):
        group = list(members)
        if groups and (len(group) < 2 or len(groups[-1]) < 2):
            groups[-1] += group
        else:
            groups.append(group)
    return {
        f"prompt_tokens={group[0][0].prompt_tokens}-{group[-1][0].prompt_tokens}": group
        for group in groups
    }


def _clusters(answers: Sequence[Answers], value: Mapping[str, float]) -> list[float]:
    """Mean of `value` per item, over its samples, in order of names."""
    found: dict[str, list[float]] = {}
    for base, _ in answers:
        found.setdefault(base.item.partition(SAMPLE_MARK)[0], []).append(value[base.item])
    return [stats.mean(found[item]) for item in sorted(found)]


def _accuracy(case: Case, cell: str, answers: Sequence[Answers]) -> Verdict:
    margin = case.policy.quality.accuracy_margin
    base = stats.mean([b.score for b, _ in answers])
    candidate = stats.mean([c.score for _, c in answers])
    difference = _clusters(answers, {b.item: c.score - b.score for b, c in answers})
    detail = f"base scores {base:.3f}, candidate {candidate:.3f}, margin {margin:g}"
    interval = stats.t_interval(difference, LEVEL) if len(difference) > 1 else None
    deciding = True
    if interval is None:
        state, reason = State.INCONCLUSIVE, "EVAL-POWER"
    elif base == 0.0 and interval.estimate <= 0.0:
        # A base that answers nothing right cannot show a loss: say so instead of passing.
        state, reason = State.INSENSITIVE, "EVAL-FLOOR"
        deciding = case.target.role != "development"
    else:
        state, agreed = _state(difference, margin)
        worse = state in (State.INFERIOR, State.NON_INFERIOR_BUT_WORSE)
        reason = "EVAL-WORSE" if worse else "OK" if state is State.NON_INFERIOR else "EVAL-POWER"
        detail += "" if agreed else "; t and bootstrap bounds disagree"
        detail += f"; {_power(difference, margin)}"
    return Verdict(
        rule="quality",
        cell=cell,
        state=state,
        reason=reason,
        detail=detail,
        deciding=deciding,
        estimate=interval.estimate if interval else None,
        lower=interval.lower if interval else None,
        upper=interval.upper if interval else None,
        unit="score difference",
        n=len(difference),
        next="" if reason == "OK" else case.reproduce("evals"),
    )


def _state(difference: Sequence[float], margin: float) -> tuple[State, bool]:
    """What Student's bound says, and whether the bootstrap says the same of the margin.

    Worse, even certainly, has to hold at the level of Student's interval and of McNemar's exact
    test where scores are 0 or 1: a few lost answers are too sparse for the former alone.
    """
    student = stats.t_interval(difference, LEVEL)
    bootstrap = stats.bootstrap_interval(difference, LEVEL)
    chance = 0.0
    if all(value in (-1.0, 0.0, 1.0) for value in difference):
        chance = stats.mcnemar_harm(difference.count(-1.0), difference.count(1.0))
    clears = student.lower > -margin
    if clears != (bootstrap.lower > -margin):
        return State.INCONCLUSIVE, False
    if clears:
        worse = student.upper < 0 and chance <= LEVEL
        return (State.NON_INFERIOR_BUT_WORSE if worse else State.NON_INFERIOR), True
    surely = stats.t_interval(difference, SURE).upper < 0 and chance <= SURE
    if surely and bootstrap.upper >= 0:
        return State.INCONCLUSIVE, False
    return (State.INFERIOR if surely else State.INCONCLUSIVE), True


def _power(difference: Sequence[float], margin: float) -> str:
    """What so many items can show, and how many would decide."""
    count = len(difference)
    spread = stats.sd(difference)
    if spread == 0.0:
        unseen = stats.unseen_rate(count, LEVEL)
        return f"no item differs; a change in {unseen:.1%} of items would show with 95 %"
    return f"{stats.pairs_needed(spread, margin)} items with this spread would decide with 80 %"


def alarms(case: Case, evals: Mapping[str, Sequence[Pair]]) -> Iterator[Verdict]:
    """More right answers lost than won, of evals that score 0 or 1; Holm's correction over all.

    An alarm calls for a human: whether so great a loss is tolerable is what the margin decides.
    """
    chances: dict[str, tuple[int, int, int]] = {}
    for name, pairs in evals.items():
        answers = [(p.base, p.candidate) for p in pairs]
        if all(record.score in (0.0, 1.0) for both in answers for record in both):
            harmed = sum(b.score > c.score for b, c in answers)
            helped = sum(b.score < c.score for b, c in answers)
            chances[name] = harmed, helped, len(answers)
    adjusted = stats.holm([stats.mcnemar_harm(b, c) for b, c, _ in chances.values()])
    for (name, (harmed, helped, count)), chance in zip(chances.items(), adjusted, strict=True):
        alarm = chance <= case.policy.quality.alarm_level
        yield Verdict(
            rule="quality",
            cell=f"{name}/alarm",
            state=State.INCONCLUSIVE if alarm else State.PASS,
            reason="EVAL-ALARM" if alarm else "OK",
            detail=f"{harmed} right answers lost, {helped} won, p = {chance:.2g} over "
            f"{len(chances)} evals",
            n=count,
            next=case.reproduce("evals") if alarm else "",
        )


def length(case: Case, name: str, pairs: Sequence[Pair]) -> Verdict:
    """Answers are as long as base's, and no more of them are cut off at the limit.

    Both compositions of an item are averaged.
    """
    policy = case.policy.quality
    rounds = [[(p.base, p.candidate), *([p.alone] if p.alone else [])] for p in pairs]
    flat = [both for both_rounds in rounds for both in both_rounds]
    scale = stats.mean([float(len(base.token_ids)) for base, _ in flat])
    longer = [
        stats.mean([float(len(c.token_ids) - len(b.token_ids)) for b, c in r]) for r in rounds
    ]
    cut = [stats.mean([float(_cut(c)) - float(_cut(b)) for b, c in r]) for r in rounds]
    reasons = "; ".join(
        f"{arm}: {', '.join(f'{reason} {count}' for reason, count in sorted(found.items()))}"
        for arm, found in (
            ("base", Counter(b.finish_reason for b, _ in flat)),
            ("candidate", Counter(c.finish_reason for _, c in flat)),
        )
    )
    state, reason, relative = State.INCONCLUSIVE, "EVAL-POWER", None
    if len(pairs) > 1 and scale > 0:
        by = stats.t_interval([value / scale for value in longer], LEVEL)
        share = stats.t_interval(cut, LEVEL)
        relative = by
        margin, share_margin = policy.length_margin, policy.length_share_margin
        if -margin < by.lower and by.upper < margin and share.upper <= share_margin:
            state, reason = State.PASS, "OK"
        elif by.upper < -margin or by.lower > margin or share.lower > share_margin:
            state, reason = State.FAIL, "EVAL-LENGTH"
    return Verdict(
        rule="quality",
        cell=f"{name}/length",
        state=state,
        reason=reason,
        detail=f"base's answers have {scale:.1f} tokens, the candidate's "
        f"{scale + stats.mean(longer):.1f}; finish reasons {reasons}",
        estimate=relative.estimate if relative else None,
        lower=relative.lower if relative else None,
        upper=relative.upper if relative else None,
        floor=policy.length_margin,
        unit="relative length",
        n=len(pairs),
        next="" if reason == "OK" else case.reproduce("evals"),
    )


def _cut(record: ItemRecord) -> bool:
    return record.finish_reason == "length"
