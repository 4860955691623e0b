"""Several sequences of one request (`n`): as many as asked, alike under top-k 1, unlike without."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack import stats
from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    answered,
    at_least,
    drawn,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.schema import Check

N = 8
TOKENS = 10
LEVEL = 1e-3


def observe(probe: Probe) -> Facts:
    """A request with one choice per token and a seeded one, `n` each, beside a greedy one."""
    prompt = probe.prompt(12)
    seeded = drawn(TOKENS, temperature=1.5, seed=probe.seed, n=N)
    same = Request(prompt=prompt, sampling=greedy(TOKENS, n=N, temperature=1.0, top_k=1))
    several = Request(prompt=prompt, sampling=seeded)
    (one,) = probe.ask([Request(prompt=prompt, sampling=greedy(TOKENS))])
    alike, unlike = probe.ask([same, several])
    (again,) = probe.ask([several])
    sequences = [unlike, *unlike.others]
    return {
        **answered([one]),
        "alike": sum(probe.agree(one, other) for other in (alike, *alike.others)),
        "returned": len(sequences),
        "whole": sum(len(sequence.token_ids) == TOKENS for sequence in sequences),
        "distinct": len({sequence.token_ids for sequence in sequences}),
        "draws": [list(sequence.token_ids) for sequence in sequences],
        "moved": sum(
            a.token_ids != b.token_ids
            for a, b in zip(sequences, [again, *again.others], strict=True)
        ),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    found = [
        equal("sequences_returned", facts["returned"], N),
        equal("sequences_of_full_length", facts["whole"], N),
        equal("greedy_sequences_alike", facts["alike"], N),
        at_least("sampled_sequences_differ", facts["distinct"], N // 2),
        *same_as_base(facts, base),
    ]
    if base is not None:
        parted = sum(a != b for a, b in zip(facts["draws"], base["draws"], strict=True))
        chance = stats.fisher_upper_tail(parted, base["moved"], N)
        found.append(at_least("chance_of_as_many_changed_sequences", chance, LEVEL))
    return found


FEATURE = Feature("parallel_samples", observe, checks)
