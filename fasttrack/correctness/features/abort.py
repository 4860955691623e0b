"""Abort: requests given up in mid-answer leave the others' tokens, and nothing behind."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    answered,
    at_least,
    at_most,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request
from fasttrack.schema import Check

REQUESTS = 8
TOKENS = 16
AFTER = 3
CYCLES = 3


def observe(probe: Probe) -> Facts:
    """A batch that runs through, and the same with every second request given up, some times."""
    asked = [
        Request(prompt=probe.prompt(4 + 3 * i, i), sampling=greedy(TOKENS), arrive_after=i // 2)
        for i in range(REQUESTS)
    ]
    whole = probe.ask(asked)
    halved = [
        request.model_copy(update={"abort_after": AFTER}) if i % 2 else request
        for i, request in enumerate(asked)
    ]
    runs = [probe.ask_all(halved) for _ in range(CYCLES)]
    (after,) = probe.ask(asked[:1])
    stayed = [(run.answers[i], whole[i]) for run in runs for i in range(0, REQUESTS, 2)]
    gone = [run.answers[i] for run in runs for i in range(1, REQUESTS, 2)]
    return {
        **answered(whole),
        "stayed": len(stayed),
        "agree": sum(probe.agree(one, other) for other, one in stayed),
        "gone": len(gone),
        "given_up": sum(answer.finish_reason == "aborted" for answer in gone),
        "longest": max(len(answer.token_ids) for answer in gone),
        "shortest": min(len(answer.token_ids) for answer in gone),
        "left": max(run.left for run in runs),
        "cache_usage": max(run.cache_usage for run in runs),
        "answers_after": probe.agree(whole[0], after),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("others_answer_alike", facts["agree"], facts["stayed"]),
        equal("given_up", facts["given_up"], facts["gone"]),
        at_least("tokens_before_abort", facts["shortest"], AFTER),
        at_most("tokens_of_an_aborted_request", facts["longest"], TOKENS - 1),
        equal("requests_left", facts["left"], 0),
        equal("cache_share_left", facts["cache_usage"], 0.0),
        equal("same_answer_after_aborts", facts["answers_after"], True),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("abort", observe, checks)
