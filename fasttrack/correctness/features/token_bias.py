"""Logit bias, bad words, allowed token ids and min_tokens: what is forbidden never appears.

A bias of 100 makes a token certain and one of -100 makes it impossible, whatever the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import Facts, Feature, Probe, at_least, equal
from fasttrack.engine.base import Request, Sampling
from fasttrack.schema import Check

TOKENS = 10
LEAST = 6
LETTERS = "abcd"


def observe(probe: Probe) -> Facts:
    """One request per rule and its opposite, greedy and sampled, in one batch."""
    (first,) = probe.ask([Request(prompt=probe.prompt(8), sampling=Sampling(max_tokens=TOKENS))])
    usual = first.token_ids[0]
    letters = tuple(ids[0] for ids in probe.session.encode(list(LETTERS)))
    wanted, other = letters[0], letters[1]
    samplings = {
        "removed": Sampling(max_tokens=TOKENS, logit_bias={usual: -100.0}),
        "forced": Sampling(max_tokens=TOKENS, logit_bias={wanted: 100.0}),
        "bad": Sampling(
            max_tokens=TOKENS, logit_bias={wanted: 100.0, other: 50.0}, bad_words=(LETTERS[0],)
        ),
        "allowed": Sampling(max_tokens=TOKENS, temperature=1.0, seed=3, allowed_token_ids=letters),
        "ended": Sampling(
            max_tokens=TOKENS, logit_bias={wanted: 100.0}, stop_token_ids=(wanted,)
        ),
        "least": Sampling(
            max_tokens=TOKENS, logit_bias={wanted: 100.0}, stop_token_ids=(wanted,),
            min_tokens=LEAST,
        ),
    }  # fmt: skip
    answers = probe.ask(
        [Request(prompt=probe.prompt(8), sampling=sampling) for sampling in samplings.values()]
    )
    made = dict(zip(samplings, (answer.token_ids for answer in answers), strict=True))
    return {
        "removed": made["removed"].count(usual),
        "forced": made["forced"].count(wanted),
        "bad": made["bad"].count(wanted),
        "beside_bad": made["bad"].count(other),
        "allowed": sum(token in letters for token in made["allowed"]),
        "ended": len(made["ended"]),
        "least": len(made["least"]),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("tokens_biased_away", facts["removed"], 0),
        equal("tokens_forced", facts["forced"], TOKENS),
        equal("bad_words", facts["bad"], 0),
        equal("tokens_beside_bad_words", facts["beside_bad"], TOKENS),
        equal("tokens_allowed", facts["allowed"], TOKENS),
        equal("tokens_before_stop_token", facts["ended"], 1),
        at_least("tokens_with_min_tokens", facts["least"], LEAST),
    ]


FEATURE = Feature("token_bias", observe, checks)
