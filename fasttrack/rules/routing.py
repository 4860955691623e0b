"""Whether prompts of a mixture-of-experts model use its experts otherwise than random tokens do.

Measured is how far the prompts' choice of experts lies from that of random tokens of the same
lengths (total variation, the mean over layers), against how far a second set of random tokens lies
from the first. Not the entropy alone: a trained router may spread real text more evenly than random
tokens, or less; it is told beside. Where routing cannot be seen, the evenness of the prompts'
tokens has to do (`validity.prompts_problem`). Read by `speed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fasttrack import stats
from fasttrack.rules.base import Case, Rule
from fasttrack.schema import RoutingRecord, State, Verdict

Counts = Sequence[Sequence[int]]


def problems(case: Case) -> Mapping[int, str]:
    """Why prompts do not count, by their length in tokens; only of those that do not."""
    found = {r.context_tokens: _problem(r, case) for r in case.records(RoutingRecord)}
    return {context: why for context, why in found.items() if why}


def verdicts(case: Case) -> Iterator[Verdict]:
    """What was seen for each context, for the reader; the cells of that context decide."""
    if not case.records(RoutingRecord):
        yield Verdict(
            rule="prompts", cell="routing", state=State.INSENSITIVE, reason="VAL-UNROUTED",
            detail="no session told which experts its prompts were sent to", deciding=False,
            next=case.reproduce("perf"),
        )  # fmt: skip
    for context, record in sorted(
        {r.context_tokens: r for r in case.records(RoutingRecord)}.items()
    ):
        why = _problem(record, case)
        if why:
            state, reason, detail = State.INVALID, "VAL-PROMPTS", why
        elif not record.experts:
            state, reason, detail = State.PASS, "OK", "the model has no experts to route to"
        elif not record.sent:
            state, reason = State.INSENSITIVE, "VAL-UNROUTED"
            detail = f"{record.problem}: the evenness of the prompts' tokens has to do"
        else:
            state, reason, detail = State.PASS, "OK", told(record)
        yield Verdict(
            rule="prompts", cell=f"routing/context_tokens={context}", state=state, reason=reason,
            detail=detail, deciding=False, n=record.prompts, next=case.reproduce("perf"),
        )  # fmt: skip


def told(record: RoutingRecord) -> str:
    """The entropies and distances of one record, in a sentence."""
    apart, noise = distances(record)
    return (
        f"{len(record.sent)} layers of {record.experts} experts: entropy {entropy(record.sent):.3f}"
        f" of its largest for {record.prompts} prompts, {entropy(record.random):.3f} for random "
        f"tokens; {apart:.3g} from random tokens, which are {noise:.3g} from others"
    )


def _problem(record: RoutingRecord, case: Case) -> str:
    if not record.sent:
        return ""
    if not len(record.sent) == len(record.random) == len(record.again):
        return "prompts and random tokens were not routed by the same layers"
    apart, noise = distances(record)
    least = case.policy.speed.min_routing_contrast
    if apart >= least * noise:
        return ""
    return f"its prompts route like random tokens: {told(record)}"


def entropy(counts: Counts) -> float:
    """Entropy of the choice of experts over its largest, log(experts): the mean over layers.

    1 where all experts are chosen alike, 0 where always the same one is or nothing was counted.
    """
    return stats.mean([_entropy(layer) for layer in counts])


def _entropy(layer: Sequence[int]) -> float:
    total = sum(layer)
    if len(layer) < 2 or not total:
        return 0.0
    nats = -math.fsum(n / total * math.log(n / total) for n in layer if n)
    return nats / math.log(len(layer))


def distances(record: RoutingRecord) -> tuple[float, float]:
    """Of prompts from random tokens, and of these from other ones."""
    return _distance(record.sent, record.random), _distance(record.again, record.random)


def _distance(one: Counts, other: Counts) -> float:
    """Total variation between the layers' shares of experts: the mean over layers, 0 to 1."""
    return stats.mean([_variation(a, b) for a, b in zip(one, other, strict=True)])


def _variation(one: Sequence[int], other: Sequence[int]) -> float:
    first, second = max(1, sum(one)), max(1, sum(other))
    return math.fsum(abs(a / first - b / second) for a, b in zip(one, other, strict=True)) / 2


RULES = (Rule("prompts", "perf", verdicts),)
