"""Streaming: the pieces add up to the answer that is given at once, token by token, in order."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.correctness.features.probe import (
    Facts,
    Feature,
    Probe,
    answered,
    at_least,
    equal,
    greedy,
    same_as_base,
)
from fasttrack.engine.base import Request, Sampling
from fasttrack.schema import Check

TOKENS = 16
LENGTHS = (3, 11, 40)


def observe(probe: Probe) -> Facts:
    """The same requests streamed and whole, greedy and seeded, in batches of one composition."""
    samplings = [greedy(TOKENS) for _ in LENGTHS]
    samplings.append(Sampling(max_tokens=TOKENS, temperature=0.9, seed=probe.seed, logprobs=2))
    prompts = [probe.prompt(n, n) for n in (*LENGTHS, 5)]
    whole, streamed = (
        probe.ask(
            [
                Request(prompt=prompt, sampling=sampling, stream=stream)
                for prompt, sampling in zip(prompts, samplings, strict=True)
            ]
        )
        for stream in (False, True)
    )
    pieces = [
        tuple(token for delta in answer.deltas for token in delta.token_ids) for answer in streamed
    ]
    return {
        **answered(streamed[: len(LENGTHS)]),
        "asked": len(prompts),
        "fewest_pieces": min(len(answer.deltas) for answer in streamed),
        "whole": sum(ids == answer.token_ids for ids, answer in zip(pieces, streamed, strict=True)),
        "same_tokens": sum(
            ids == answer.token_ids for ids, answer in zip(pieces, whole, strict=True)
        ),
        "same_text": sum(
            "".join(delta.text for delta in one.deltas) == other.text
            for one, other in zip(streamed, whole, strict=True)
        ),
        "same_reason": sum(
            one.finish_reason == other.finish_reason
            for one, other in zip(streamed, whole, strict=True)
        ),
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        at_least("pieces", facts["fewest_pieces"], 2),
        equal("pieces_are_the_answer", facts["whole"], facts["asked"]),
        equal("tokens_as_not_streamed", facts["same_tokens"], facts["asked"]),
        equal("text_as_not_streamed", facts["same_text"], facts["asked"]),
        equal("reason_as_not_streamed", facts["same_reason"], facts["asked"]),
        *same_as_base(facts, base),
    ]


FEATURE = Feature("streaming", observe, checks)
