"""What a preserved feature is: observe it in one arm, then compare facts. Shared helpers.

Owns the `Feature` type and the rule by which two greedy answers agree.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fasttrack.engine.base import Answer, Request, Sampling, Session
from fasttrack.errors import RunError
from fasttrack.schema import Check, PathRecord, Target

TIE_NATS = 1e-3
"""Greedy answers may part where the two likeliest tokens are closer than this."""
Facts = dict[str, Any]


class Refused(Exception):
    """The engine offers this feature in no arm of this target; the message says why."""


@dataclass
class Probe:
    """A running session with what features need: prompts, calls, and the collected path."""

    session: Session
    target: Target
    seed: int
    record: Callable[[str, Any], PathRecord]
    paths: list[PathRecord]
    feature: str = ""

    def ask(self, requests: Sequence[Request]) -> tuple[Answer, ...]:
        """Generate, and keep the path evidence."""
        return self.ask_steps(requests)[0]

    def ask_steps(self, requests: Sequence[Request]) -> tuple[tuple[Answer, ...], Any]:
        """Generate; answers and the engine's steps.

        Raises `RunError` ENG-006 when an answer is missing: a lost request is a lost feature.
        """
        generation = self.session.generate(requests)
        self.paths.append(self.record(f"features/{self.feature}", generation))
        if len(generation.answers) != len(requests):
            raise RunError(
                "ENG-006", f"{len(generation.answers)} answers to {len(requests)} requests"
            )
        return generation.answers, generation.steps

    def prompt(self, length: int, salt: int = 0) -> tuple[int, ...]:
        """A seeded prompt of exactly `length` printable tokens."""
        letters = random.Random(f"{self.seed}/{self.feature}/{salt}").choices(
            "abcdefghijklmnopqrstuvwxyz ,.", k=4 * length
        )
        return self.session.encode(["".join(letters)])[0][:length]


@dataclass(frozen=True)
class Feature:
    """`observe` gathers facts in one arm; `checks` judges them, with base's if there are any."""

    name: str
    observe: Callable[[Probe], Facts]
    checks: Callable[[Facts, Facts | None], Sequence[Check]]


def agree(one: Answer, other: Answer) -> bool:
    """Whether two greedy answers are the same up to a tie of the two likeliest tokens."""
    return agree_ids(one.token_ids, one.gaps, other.token_ids)


def agree_ids(one: Sequence[int], gaps: Sequence[float | None], other: Sequence[int]) -> bool:
    """As `agree`, from token ids and the first answer's gaps."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            gap = gaps[index] if index < len(gaps) else None
            return gap is not None and gap <= TIE_NATS
    return len(one) == len(other)


def greedy(max_tokens: int, **more: Any) -> Sampling:
    """Greedy sampling that reports gaps."""
    return Sampling(max_tokens=max_tokens, logprobs=2, **more)


def equal(name: str, observed: Any, bound: Any) -> Check:
    """A check for equality."""
    return Check(name=name, relation="equal", observed=observed, bound=bound)


def at_least(name: str, observed: Any, bound: Any) -> Check:
    """A check for a lower bound."""
    return Check(name=name, relation="at_least", observed=observed, bound=bound)


def at_most(name: str, observed: Any, bound: Any) -> Check:
    """A check for an upper bound."""
    return Check(name=name, relation="at_most", observed=observed, bound=bound)


def same_as_base(
    facts: Mapping[str, Any], base: Mapping[str, Any] | None, ids: str, gaps: str
) -> list[Check]:
    """The candidate's answers agree with base's, item by item; nothing to check in base itself."""
    if base is None:
        return []
    agreed = sum(
        agree_ids(a, g, b) for a, g, b in zip(base[ids], base[gaps], facts[ids], strict=False)
    )
    return [equal("answers_agree_with_base", agreed, len(base[ids]))]
