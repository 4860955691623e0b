"""Rows of tokens to learn from: the eval tasks' own generators under the stream name `train`.

Owns: what a row holds and which of its tokens are targets. A row is one conversation from an empty
state. Only answers and the end marker after them are targets: the texts of a dialogue are random.
To learn more from a row it asks many questions about one dialogue, or many chains one after the
other; the eval's single question is the case of the first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fasttrack.evals.task import Item
from fasttrack.evals.tasks import long_chain, mrcr_synthetic
from fasttrack.evals.tasks.dialogue import Turn
from kimi_k3.tokenizer import BYTES, END, PAD, SPECIALS

MARKERS = {role: BYTES + SPECIALS.index(f"<|{role}|>") for role in ("user", "assistant")}
NEEDLES = (1, 2, 2, 2, 2, 4, 4, 8)
"""Drawn evenly: how often each request of a dialogue occurs."""
FEWEST_STEPS = 4
"""Of a chain in a training row."""


class Row(NamedTuple):
    """Token ids of a row and, for each, whether it is a target."""

    ids: list[int]
    target: list[bool]

    def add(self, turn: Turn, learn: bool) -> None:
        """Append one message with its markers; an answer is a target from its first byte."""
        text = [*turn.text.encode(), END]
        self.ids.extend((MARKERS[turn.role], *text))
        self.target.extend((False, *([learn] * len(text))))


@dataclass(frozen=True)
class Mixture:
    """Which rows a step draws."""

    length: int
    """Tokens of a row before the last target."""
    rows: int
    """Rows of a step."""
    chains: float
    """Share of rows that hold chains; the rest hold dialogues."""


def mrcr_row(rng: random.Random, length: int) -> Row:
    """A dialogue of 15 to 85 % of the row, then questions about it until the row is full."""
    needles = rng.choice(NEEDLES)
    rounds = int(length * rng.uniform(0.15, 0.85) / mrcr_synthetic.TURN_TOKENS)
    most = len(mrcr_synthetic.KINDS) * len(mrcr_synthetic.TOPICS)
    dialogue = mrcr_synthetic.haystack(rng, min(most, max(2, rounds)), needles)
    row = Row([], [])
    for turn in mrcr_synthetic.turns(dialogue):
        row.add(turn, learn=False)
    while len(row.ids) < length:
        asked, answer = mrcr_synthetic.question(rng, dialogue, rng.randrange(len(dialogue)))
        row.add(Turn("user", asked), learn=False)
        row.add(Turn("assistant", answer), learn=True)
    return row


def chain_row(rng: random.Random, length: int) -> Row:
    """Chains over different nodes, of random lengths, until the row is full."""
    row = Row([], [])
    taken: set[str] = set()
    while True:
        most = (length - len(row.ids) - long_chain.FRAME) // (long_chain.LINE + long_chain.STEP)
        if most < FEWEST_STEPS:
            return row
        # Half the chains take all the room there is, so that long ones are not rare.
        steps = most if rng.random() < 0.5 else rng.randint(FEWEST_STEPS, most)
        one = long_chain.chain(rng, steps, taken)
        taken |= {line[:2] for line in one.answer.split("\n")}
        row.add(Turn("user", one.question), learn=False)
        row.add(Turn("assistant", one.answer), learn=True)


def batch(mixture: Mixture, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """ids [rows, length + 1] int16 and target weights [rows, length] bool of one step."""
    size = mixture.length + 1
    ids = torch.full((mixture.rows, size), PAD, dtype=torch.int16)
    target = torch.zeros(mixture.rows, size, dtype=torch.bool)
    for number in range(mixture.rows):
        rng = random.Random(f"train/{seed}/{step}/{number}")
        make = chain_row if rng.random() < mixture.chains else mrcr_row
        row = make(rng, size)
        kept = min(size, len(row.ids))
        ids[number, :kept] = torch.tensor(row.ids[:kept], dtype=torch.int16)
        target[number, :kept] = torch.tensor(row.target[:kept])
    return ids, target[:, 1:]


class Steps(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Batches of a stretch of steps by number, for a loader with worker processes."""

    def __init__(self, mixture: Mixture, seed: int, steps: range) -> None:
        """Step `steps[i]` is item i: what a step holds depends on its number alone."""
        self._mixture, self._seed, self._steps = mixture, seed, steps

    def __len__(self) -> int:
        """Number of steps."""
        return len(self._steps)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """See `batch`."""
        return batch(self._mixture, self._seed, self._steps[index])


def encode(text: str) -> list[int]:
    """Token ids of rendered text, as k3-nano's tokenizer gives them."""
    ids: list[int] = []
    for part in text.split("<|"):
        name, closed, rest = part.partition("|>")
        if closed and f"<|{name}|>" in SPECIALS:
            ids.append(BYTES + SPECIALS.index(f"<|{name}|>"))
            ids.extend(rest.encode())
        else:
            ids.extend(part.encode())
    return ids


def examples(items: Sequence[Item]) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, wanted answer ids with the end marker) of each item."""
    return [(encode(item.prompt), [*item.answer.encode(), END]) for item in items]
