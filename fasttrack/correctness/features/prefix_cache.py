"""Prefix caching: a repeated prompt hits the cache and gets the same answer."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    Refused,
    agree,
    at_least,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.schema import Check

TOKENS = 16


def observe(probe: Probe) -> Facts:
    """A long prompt, the same again, and the same beside others."""
    if probe.session.info.fingerprint.get("prefix_caching") is False:
        raise Refused("prefix caching is off on this target")
    length = min(400, probe.target.max_model_len - TOKENS - 1)
    request = Request(prompt=probe.prompt(length), sampling=greedy(TOKENS))
    (cold,) = probe.ask([request])
    (warm,) = probe.ask([request])
    others = [Request(prompt=probe.prompt(33, i), sampling=greedy(TOKENS)) for i in (1, 2)]
    beside = probe.ask([*others, request])[-1]
    return {
        "ids": [list(cold.token_ids)],
        "gaps": [list(cold.gaps)],
        "cold_cached": cold.cached_tokens,
        "warm_cached": warm.cached_tokens,
        "warm_agrees": agree(cold, warm),
        "beside_agrees": agree(cold, beside),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("cold_prompt_not_cached", facts["cold_cached"], 0),
        at_least("cached_tokens_on_repeat", facts["warm_cached"], 1),
        equal("same_answer_from_cache", facts["warm_agrees"], True),
        equal("same_answer_beside_others", facts["beside_agrees"], True),
        *same_as_base(facts, base, "ids", "gaps"),
    ]


FEATURE = Feature("prefix_cache", observe, checks)
