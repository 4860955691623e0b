"""Speculative decoding: n-gram drafts are verified, and greedy answers stay what they are without.

Acceptance rates are not judged: a generated checkpoint repeats itself by chance only.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    agree_ids,
    answered,
    at_least,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.engine.setting import Variant
from fasttrack.schema import Check

NGRAM = Variant(
    "ngram",
    {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 3,
        },
        "enable_prefix_caching": False,
    },
)
TOKENS = 24
"""More than the control's, so that answers repeat themselves and drafts are made."""


def observe(probe: Probe) -> Facts:
    """The control's prompts, answered with drafts."""
    requests = [Request(prompt=prompt, sampling=greedy(TOKENS)) for prompt in probe.control.prompts]
    made = probe.ask_all(requests)
    tie = 2 * probe.tolerance
    return {
        **answered(made.answers),
        "drafted": made.draft_tokens,
        "accepted": made.accepted_tokens,
        "agree": sum(
            agree_ids(ids, gaps, answer.token_ids[: len(ids)], tie)
            for ids, gaps, answer in zip(
                probe.control.ids, probe.control.gaps, made.answers, strict=False
            )
        ),
        "asked": len(requests),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        at_least("draft_tokens_verified", facts["drafted"], 1),
        equal("same_answers_as_without_drafts", facts["agree"], facts["asked"]),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("speculation", observe, checks, NGRAM)
