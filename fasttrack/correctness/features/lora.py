"""LoRA: an engine that can load adapters starts, and answers without one as it always does.

An optimization that cannot serve adapters must refuse to start with them and say so in its claim.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.control import TOKENS
from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    agree_ids,
    answered,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.engine.setting import Variant
from fasttrack.schema import Check

ADAPTERS = Variant("lora", {"enable_lora": True})


def observe(probe: Probe) -> Facts:
    """The control's prompts, without an adapter."""
    control = probe.control
    answers = probe.ask(
        [Request(prompt=prompt, sampling=greedy(TOKENS)) for prompt in control.prompts]
    )
    agreed = [
        agree_ids(ids, gaps, answer.token_ids, 2 * probe.tolerance)
        for ids, gaps, answer in zip(control.ids, control.gaps, answers, strict=False)
    ]
    return {**answered(answers), "agree": sum(agreed), "asked": len(control.prompts)}


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("same_answers_without_adapter", facts["agree"], facts["asked"]),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("lora", observe, checks, ADAPTERS)
