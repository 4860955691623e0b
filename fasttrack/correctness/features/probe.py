"""What a preserved feature is: observe it in one arm, then compare facts. Shared helpers.

Owns the `Feature` type, the stock-stock `Control` that every tolerance comes from, and the rule by
which two greedy answers agree.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fasttrack.engine.base import Answer, Generation, Request, Sampling, Session
from fasttrack.engine.setting import AS_TARGETED, Variant
from fasttrack.errors import RunError
from fasttrack.schema import Check, PathRecord, Target

RATIO = 2.0
"""The specialised path may be this much further from stock than stock is from itself; the same
factor as policy's `numerics.ratio_max`, which bounds single elements of kernels."""
ROUNDING = {"float32": 2.0**-18, "float16": 2.0**-5, "bfloat16": 2.0**-2}
"""Nats by which rounding alone changes a log-probability: 32 units in the last place of 1, because
logits are of the order of ten. Counts only where stock does not change at all."""
LETTERS = ("abcdefghijkl", "mnopqrstuvwx", "ABCDEFGHIJKL", "MNOPQRSTUVWX")
"""Alphabets of successive tokens of a drawn text, over and over."""
Facts = dict[str, Any]


class Refused(Exception):
    """The engine offers this feature in no arm of this target; the message says why."""


@dataclass(frozen=True)
class Control:
    """Greedy answers to fixed prompts, and how far stock moves them by itself."""

    prompts: tuple[tuple[int, ...], ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()
    gaps: tuple[tuple[float | None, ...], ...] = ()
    band: float = 0.0
    """Largest change of a token's log-probability between batch compositions, nats."""
    prompt_band: float = 0.0
    """The same for tokens of prompts, most of which the model holds for unlikely."""
    tokens: int = 0
    """Tokens compared for it."""

    def tolerance(self, dtype: str, *, prompt: bool = False) -> float:
        """Change of a log-probability that is no difference between the arms, nats."""
        band = self.prompt_band if prompt else self.band
        return RATIO * max(band, ROUNDING.get(dtype, ROUNDING["bfloat16"]))


@dataclass
class Probe:
    """A running session with what features need: prompts, calls, and the collected path."""

    session: Session
    target: Target
    seed: int
    record: Callable[[str, Any], PathRecord]
    paths: list[PathRecord]
    feature: str = ""
    control: Control = field(default_factory=Control)
    """Stock's, in both arms, with this arm's own answers."""
    nan_logits: int = 0
    """Of all calls so far."""

    @property
    def tolerance(self) -> float:
        """Nats by which a log-probability may change."""
        return self.control.tolerance(self.target.dtype)

    @property
    def room(self) -> int:
        """Tokens that fit a request: the engine's limit, or the target's."""
        told = self.session.info.fingerprint.get("max_model_len")
        return told if isinstance(told, int) else self.target.max_model_len

    @property
    def block(self) -> int:
        """Tokens of a cache block, which engines choose by their caches: 16 to several hundred."""
        told = self.session.info.fingerprint.get("block_size")
        return told if isinstance(told, int) else 128

    def ask(self, requests: Sequence[Request]) -> tuple[Answer, ...]:
        """Generate, and keep the path evidence."""
        return self.ask_all(requests).answers

    def ask_all(self, requests: Sequence[Request], whole: bool = True) -> Generation:
        """Generate; the whole `Generation`.

        Raises `RunError` ENG-006 when an answer is missing and the batch is to be `whole`: a lost
        request is a lost feature.
        """
        generation = self.session.generate(requests)
        self.paths.append(self.record(f"features/{self.feature}", generation))
        self.nan_logits += generation.nan_logits
        if whole and len(generation.answers) != len(requests):
            raise RunError(
                "ENG-006", f"{len(generation.answers)} answers to {len(requests)} requests"
            )
        return generation

    def prompt(self, length: int, salt: int = 0) -> tuple[int, ...]:
        """A seeded prompt of exactly `length` printable tokens."""
        letters = random.Random(f"{self.seed}/{self.feature}/{salt}").choices(
            "abcdefghijklmnopqrstuvwxyz ,.", k=4 * length
        )
        return self.session.encode(["".join(letters)])[0][:length]

    def agree(self, one: Answer, other: Answer) -> bool:
        """Whether two greedy answers are the same up to a tie of the two likeliest tokens."""
        return agree_ids(one.token_ids, one.gaps, other.token_ids, 2 * self.tolerance)


@dataclass(frozen=True)
class Feature:
    """`observe` gathers facts in one arm; `checks` judges them, with base's if there are any.

    `variant`: the boot it needs. Features of one variant share a session.
    """

    name: str
    observe: Callable[[Probe], Facts]
    checks: Callable[[Facts, Facts | None], Sequence[Check]]
    variant: Variant = AS_TARGETED
    last: bool = False
    """Whether it looks back at what the session's other features did."""
    where: Callable[[Target], bool] = lambda target: True
    """Targets that need the variant; others are booted as they are."""

    def boot(self, target: Target) -> Variant:
        """What it needs of a target."""
        return self.variant if self.where(target) else AS_TARGETED


def watch(feature: Feature, probe: Probe) -> Facts:
    """A feature's facts in one arm, with the tolerance that its checks use."""
    probe.feature = feature.name
    return {**feature.observe(probe), "tolerance": probe.tolerance}


def agree_ids(
    one: Sequence[int], gaps: Sequence[float | None], other: Sequence[int], tie: float
) -> bool:
    """Whether greedy answers are equal, or part where the likeliest tokens are at most `tie` apart.

    `gaps`: the first answer's. Behind a parting nothing is compared: the histories differ.
    """
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            gap = gaps[index] if index < len(gaps) else None
            return gap is not None and gap <= tie
    return len(one) == len(other)


def changes(
    ids: Sequence[int],
    values: Sequence[float | None],
    other_ids: Sequence[int],
    other_values: Sequence[float | None],
) -> list[float]:
    """Changes of log-probabilities, nats, of the tokens before two answers part.

    A value that only one side has, or that was not finite, is an infinite change.
    """
    found = []
    for token, value, other_token, other in zip(ids, values, other_ids, other_values, strict=False):
        if token != other_token:
            break
        if value is None or other is None:
            found.append(0.0 if value is other else float("inf"))
        else:
            found.append(abs(value - other))
    return found


def prompt_changes(
    values: Sequence[float | None], other_values: Sequence[float | None]
) -> list[float]:
    """As `changes`, of one prompt's tokens in two runs."""
    return changes([0] * len(values), values, [0] * len(other_values), other_values)


def greedy(max_tokens: int, **more: Any) -> Sampling:
    """Greedy sampling that reports gaps."""
    return Sampling(max_tokens=max_tokens, logprobs=2, **more)


def drawn(tokens: int, **more: Any) -> Sampling:
    """Sampling whose tokens are uncertain for any model, `tokens` letters of changing alphabets.

    A trained model that is sure of what it says, or that repeats itself, would leave no choice to
    sample from; a letter of an alphabet that the last letter is not of is neither.
    """
    classes = (f"[{LETTERS[i % 4][0]}-{LETTERS[i % 4][-1]}]" for i in range(tokens))
    return Sampling(
        **{"max_tokens": tokens, "structured": {"regex": "".join(classes)}, "temperature": 1.0}
        | more
    )


def answered(answers: Sequence[Answer]) -> Facts:
    """Token ids and gaps of greedy answers, as `same_as_base` reads them."""
    return {
        "ids": [list(answer.token_ids) for answer in answers],
        "gaps": [list(answer.gaps) for answer in answers],
    }


def equal(name: str, observed: Any, bound: Any) -> Check:
    """A check for equality."""
    return Check(name=name, relation="equal", observed=observed, bound=bound)


def at_least(name: str, observed: Any, bound: Any) -> Check:
    """A check for a lower bound."""
    return Check(name=name, relation="at_least", observed=observed, bound=bound)


def at_most(name: str, observed: Any, bound: Any) -> Check:
    """A check for an upper bound; a value that is not finite never holds."""
    if isinstance(observed, float) and observed == float("inf"):
        observed = None
    return Check(name=name, relation="at_most", observed=observed, bound=bound)


def same_as_base(facts: Mapping[str, Any], base: Mapping[str, Any] | None) -> list[Check]:
    """The candidate's answers agree with base's, item by item; nothing to check in base itself."""
    if base is None:
        return []
    tie = 2 * facts["tolerance"]
    agreed = sum(
        agree_ids(a, g, b, tie)
        for a, g, b in zip(base["ids"], base["gaps"], facts["ids"], strict=False)
    )
    return [equal("answers_agree_with_base", agreed, len(base["ids"]))]
