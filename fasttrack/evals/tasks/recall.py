"""Key-value recall: find the value of one key among many, in prompts of growing length.

Synthetic and offline. A model with random weights scores zero; the token-level divergence that is
measured on the same answers does not depend on the score.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from fasttrack.evals.task import Item

SALT = 101
"""Added to the seed. At seed 0 no router decision behind k3-nano's answers to the twelve items of
the smoke tier lies closer than 2e-5 to a tie (fp64), so that rounding alone cannot turn one."""
LINE = 12
"""Characters of one ``k4711 = 0815`` line, so that lengths can be planned."""


@dataclass(frozen=True)
class Recall:
    """See the module docstring."""

    name: str = "recall"

    def items(self, seed: int, count: int, max_prompt_tokens: int) -> Sequence[Item]:
        """Lengths grow geometrically from two lines to what the context admits."""
        most = max(3, (max_prompt_tokens - 2 * LINE) // (LINE + 2))
        made = []
        for index in range(count):
            rng = random.Random(f"recall/{seed + SALT}/{index}")
            share = index / max(1, count - 1)
            lines = round(2 * (most / 2) ** share)
            keys = rng.sample(range(1000, 10000), lines)
            values = [f"{rng.randrange(10000):04d}" for _ in keys]
            wanted = rng.randrange(lines)
            body = "\n".join(f"k{k} = {v}" for k, v in zip(keys, values, strict=True))
            prompt = f"{body}\nk{keys[wanted]} ="
            made.append(Item(id=f"recall-{seed}-{index}", prompt=prompt, answer=values[wanted]))
        return made

    def score(self, item: Item, text: str) -> float:
        """1 when the answer starts with the value."""
        return float(text.strip().startswith(item.answer))


TASK = Recall()
