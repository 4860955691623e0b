"""Prefix caching: a repeated prompt hits the cache, gets the same answer, and can be forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    Refused,
    answered,
    at_least,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.engine.setting import Variant
from fasttrack.schema import Check, Target

CACHING = Variant("prefix_caching", {"enable_prefix_caching": True})
TOKENS = 16


def _off(target: Target) -> bool:
    return target.engine_args.get("enable_prefix_caching") is False


def observe(probe: Probe) -> Facts:
    """A long prompt, the same again, after and beside others, and after a reset."""
    if probe.session.info.fingerprint.get("prefix_caching") is False:
        raise Refused("the engine does not cache prefixes")
    # Only whole blocks are cached.
    length = min(max(400, probe.block * 3 // 2), probe.room - 2 * TOKENS - 1)
    request = Request(prompt=probe.prompt(length), sampling=greedy(TOKENS))
    (cold,) = probe.ask([request])
    (warm,) = probe.ask([request])
    # Other requests decode in between: what they write must not reach the cached rows.
    others = [Request(prompt=probe.prompt(33, i), sampling=greedy(TOKENS)) for i in (1, 2)]
    probe.ask(others)
    beside = probe.ask([*others, request])[-1]
    probe.session.reset_prefix_cache()
    (forgotten,) = probe.ask([request])
    return {
        **answered([cold]),
        "cold_cached": cold.cached_tokens,
        "warm_cached": warm.cached_tokens,
        "warm_agrees": probe.agree(cold, warm),
        "beside_agrees": probe.agree(cold, beside),
        "cached_after_reset": forgotten.cached_tokens,
        "agrees_after_reset": probe.agree(cold, forgotten),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("cold_prompt_not_cached", facts["cold_cached"], 0),
        at_least("cached_tokens_on_repeat", facts["warm_cached"], 1),
        equal("same_answer_from_cache", facts["warm_agrees"], True),
        equal("same_answer_after_others", facts["beside_agrees"], True),
        equal("cached_after_reset", facts["cached_after_reset"], 0),
        equal("same_answer_after_reset", facts["agrees_after_reset"], True),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("prefix_cache", observe, checks, CACHING, where=_off)
