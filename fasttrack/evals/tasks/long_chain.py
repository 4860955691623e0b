"""A chain of swaps written out step by step: one wrong step ruins everything after it.

Synthetic and offline. The prompt gives a start node, a start arrangement of five letters and, in
random order, one line per node: two letters to swap and the next node. The answer repeats the line
of every node on the way and the arrangement after its swap:

    prompt               answer
    start kq cabed
    wz:be>--             kq:ad>wz=cdbea
    kq:ad>wz             wz:be>--=cdeba

Every step looks its line up in the prompt by the node it came to and moves on from the arrangement
just written, so that both the long-range and the short-range path of a model carry the answer. A
chain is right or wrong as a whole; its length is its difficulty.

Owns: the generator, which training shares under another name of its random stream, and the scorer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fasttrack.evals.task import Item
from fasttrack.evals.tasks.dialogue import Turn, render

SCORER = "exact-chain/1"
"""The scorer: 1 when the answer, stripped, equals the whole chain, else 0."""

LETTERS = "abcde"
_LABEL = "fghijklmnopqrstuvwxyz"
LABELS = tuple(a + b for a in _LABEL for b in _LABEL)
"""Names of nodes; none has a letter of an arrangement."""
LAST = "--"
"""Stands where the last node's successor would."""
STEPS = 8
"""Of an eval's items: an answer of 119 characters to a prompt of 114."""
LINE, STEP, FRAME = 9, 15, 17
"""Tokens of a prompt line, of an answer's step, and of everything else in an item."""


@dataclass(frozen=True)
class Chain:
    """One question and its answer, without role markers."""

    question: str
    answer: str


def chain(rng: random.Random, steps: int, taken: Collection[str] = ()) -> Chain:
    """A chain of `steps` over nodes that are not `taken`. Raises ValueError if too few are left."""
    path = rng.sample([label for label in LABELS if label not in taken], steps)
    arrangement = rng.sample(LETTERS, len(LETTERS))
    head = f"start {path[0]} {''.join(arrangement)}"
    lines, answers = [], []
    for node, following in zip(path, [*path[1:], LAST], strict=True):
        one, other = sorted(rng.sample(LETTERS, 2))
        swap = {one: other, other: one}
        arrangement = [swap.get(letter, letter) for letter in arrangement]
        lines.append(f"{node}:{one}{other}>{following}")
        answers.append(f"{lines[-1]}={''.join(arrangement)}")
    rng.shuffle(lines)
    return Chain("\n".join([head, *lines]), "\n".join(answers))


def length(steps: int) -> int:
    """Tokens of an item of `steps`, prompt and answer together."""
    return FRAME + (LINE + STEP) * steps


def score(wanted: str, text: str) -> float:
    """`SCORER` of an answer's text."""
    return float(text.strip() == wanted)


def right_steps(wanted: str, text: str) -> int:
    """Steps before the first wrong one."""
    right = 0
    for one, other in zip(wanted.split("\n"), text.strip().split("\n"), strict=False):
        if one != other:
            break
        right += 1
    return right


def items(seed: int, count: int, steps: int, stream: str = "eval") -> list[Item]:
    """Items of `steps` each. `stream` as in `mrcr_synthetic.items`."""
    made = []
    for index in range(count):
        rng = random.Random(f"long-chain/{stream}/{seed}/{steps}/{index}")
        one = chain(rng, steps)
        prompt = render([Turn("user", one.question)])
        made.append(Item(id=f"chain-{steps}-{seed}-{index}", prompt=prompt, answer=one.answer))
    return made


@dataclass(frozen=True)
class LongChain:
    """Chains of `STEPS`. See the module docstring."""

    name: str = "long-chain"
    answer_tokens: int | None = None
    judged: bool = True

    def items(self, seed: int, count: int, max_prompt_tokens: int) -> Sequence[Item]:
        """The prompts have one length, which fits in `task.MIN_PROMPT_TOKENS`."""
        return items(seed, count, STEPS)

    def score(self, item: Item, text: str) -> float:
        """`SCORER`."""
        return score(item.answer, text)


TASK = LongChain()
