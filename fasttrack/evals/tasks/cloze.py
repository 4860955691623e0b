"""The next characters of a text that nobody can know for sure.

Synthetic and offline. The prompt is a question of `long_chain`, cut off at a random place. What
follows is mostly random, so the share of it that is guessed is recorded and not judged. The other
tasks ask for answers that a trained model is certain of: there, tokens that are drawn where they
should be chosen, or drawn at another temperature, are the same tokens. Here many are close, so that
a change of sampling, or of a log-probability that no certain answer shows, is seen in the answers
themselves and in their replay.

Owns: the generator and the scorer. Cloze procedure: Taylor, Journalism Quarterly 30, 1953.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from fasttrack.evals.task import Item
from fasttrack.evals.tasks import long_chain
from fasttrack.evals.tasks.dialogue import END, Turn, render

SCORER = "leading-characters/1"
"""The scorer: share of the wanted characters before the first wrong one."""

WANTED = 4
SHORTEST = 24
"""Characters of a prompt at least, its role marker included."""


@dataclass(frozen=True)
class Cloze:
    """Texts cut off. See the module docstring."""

    name: str = "cloze"
    answer_tokens: int | None = 32
    judged: bool = False

    def items(self, seed: int, count: int, max_prompt_tokens: int) -> Sequence[Item]:
        """No text is longer than `task.MIN_PROMPT_TOKENS`."""
        made = []
        for index in range(count):
            rng = random.Random(f"cloze/{seed}/{index}")
            question = long_chain.chain(rng, long_chain.STEPS).question
            text = render([Turn("user", question)]).partition(END)[0]
            cut = rng.randrange(SHORTEST, len(text) - WANTED)
            made.append(
                Item(id=f"cloze-{seed}-{index}", prompt=text[:cut], answer=text[cut:][:WANTED])
            )
        return made

    def score(self, item: Item, text: str) -> float:
        """`SCORER`."""
        right = 0
        while right < len(item.answer) and text[right : right + 1] == item.answer[right]:
            right += 1
        return right / len(item.answer)


TASK = Cloze()
