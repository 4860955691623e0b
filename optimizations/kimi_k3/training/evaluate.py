"""Scores of weights on the eval items, without an engine.

Owns: one parallel forward per item instead of a generation. A greedy answer equals the wanted one
exactly when every wanted token is the argmax after the wanted tokens before it, so the share of
exact answers is that of greedy decoding. It is long-chain's score, and a lower bound of
mrcr-synthetic's, which gives part of the credit to a wrong answer with the right random string.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fasttrack.evals.task import Item
from fasttrack.evals.tasks import long_chain, mrcr_synthetic
from kimi_k3.tokenizer import PAD
from kimi_k3.training.data import examples
from kimi_k3.training.delta import CHUNK
from kimi_k3.training.forward import Decoder

SEED = 0
LONGEST = 2048
TOKENS = 32768
"""Tokens of one forward."""


def suites(count: int, longest: int = LONGEST) -> dict[str, list[Item]]:
    """The items scored after training: needle counts and chain lengths apart."""
    found = {
        f"mrcr-synthetic/{needles}": mrcr_synthetic.items(SEED, count, needles, 256, longest - 64)
        for needles in (2, 4, 8)
    }
    for steps in (8, 16, 24, 32, 48):
        if long_chain.length(steps) <= longest:
            found[f"long-chain/{steps}"] = long_chain.items(SEED, count, steps)
    return found


@torch.no_grad()
def exact(decoder: Decoder, items: Sequence[Item], device: torch.device) -> tuple[float, float]:
    """(share of items answered exactly, share of answer tokens right after right ones)."""
    cases = sorted(examples(items), key=lambda case: len(case[0]) + len(case[1]))
    whole, right, total = 0, 0, 0
    while cases:
        length = -(-(len(cases[-1][0]) + len(cases[-1][1])) // CHUNK) * CHUNK
        taken, cases = cases[-max(1, TOKENS // length) :], cases[: -max(1, TOKENS // length)]
        ids = torch.full((len(taken), length), PAD)
        for row, (prompt, answer) in zip(ids, taken, strict=True):
            row[: len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        best = decoder.logits(ids.to(device)).argmax(-1).cpu()
        for row, (prompt, answer) in zip(best, taken, strict=True):
            found = row[len(prompt) - 1 : len(prompt) + len(answer) - 1]
            same = found == torch.tensor(answer)
            whole += bool(same.all())
            right += int(same.sum())
            total += len(answer)
    return whole / len(items), right / total


def scores(
    decoder: Decoder, count: int, longest: int, device: torch.device
) -> dict[str, dict[str, float]]:
    """Scores of every suite that fits in `longest` tokens, `count` items each."""
    found = {}
    for name, items in suites(count, longest).items():
        whole, token = exact(decoder, items, device)
        found[name] = {"items": len(items), "exact": whole, "token": token}
    return found
