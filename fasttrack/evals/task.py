"""The eval-task protocol: items made from a seed, and a pure score. Leaf: the verifier uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MIN_PROMPT_TOKENS, MAX_PROMPT_TOKENS = 240, 2048
"""Room that every task gets at least, and at most."""


@dataclass(frozen=True)
class Item:
    """One question. `prompt` is the exact text that is tokenised; `answer` is what scores 1."""

    id: str
    prompt: str
    answer: str


class EvalTask(Protocol):
    """One eval; an instance named `TASK` in a module of `evals/tasks`."""

    name: str
    answer_tokens: int | None
    """Most tokens of an answer, where fewer are enough than the tier allows."""
    judged: bool
    """Whether scores mean anything; else only tokens and their log-probabilities are judged."""

    def items(self, seed: int, count: int, max_prompt_tokens: int) -> Sequence[Item]:
        """Items from a seed; the same arguments give the same items.

        `max_prompt_tokens` is `MIN_PROMPT_TOKENS` at least.
        """
        ...

    def score(self, item: Item, text: str) -> float:
        """Score in [0, 1] of an answer's text."""
        ...


def prompt_room(max_model_len: int, answer_tokens: int) -> int:
    """Tokens a prompt may have on a target so that its answer fits behind it."""
    return min(MAX_PROMPT_TOKENS, max_model_len - answer_tokens - 1)
