"""Stock against stock: the same requests alone, together and in a crowd. Not a feature by itself.

Batched matrix products add up in another order when the batch changes, so stock's own
log-probabilities move a little. That movement is the unit of every tolerance of this stage.
"""

from __future__ import annotations

from fasttrack.correctness.features.probe import (
    Control,
    Probe,
    changes,
    drawn,
    greedy,
    prompt_changes,
)
from fasttrack.engine.base import Request

LENGTHS = (1, 4, 9, 21, 64, 130)
UNSURE = (5, 33)
"""Prompts answered by letters of changing alphabets: a model that is sure of every token shows no
movement, because a probability of 1 stays one."""
TOKENS = 12
CROWD = 10


def measure(probe: Probe) -> Control:
    """This session's answers to the control prompts, and the band over three compositions."""
    probe.feature = "control"
    samplings = {length: greedy(TOKENS, prompt_logprobs=1) for length in LENGTHS}
    samplings |= {length: drawn(TOKENS, temperature=0.0, logprobs=2) for length in UNSURE}
    requests = [
        Request(prompt=probe.prompt(length, length), sampling=sampling)
        for length, sampling in samplings.items()
    ]
    crowd = [
        Request(prompt=probe.prompt(5 + i, -1 - i), sampling=greedy(TOKENS)) for i in range(CROWD)
    ]
    batches = ([*requests], *([one] for one in requests), [*requests[::-1], *crowd])
    # A lost answer ends in no record here: the features that lose one tell.
    together, *rest = (list(probe.ask_all(batch, whole=False).answers) for batch in batches)
    alone = [answer for batch in rest[:-1] for answer in batch]
    crowded = rest[-1][: len(requests)][::-1]
    pairs = [
        (one, other)
        for one, *others in zip(together, alone, crowded, strict=False)
        for other in others
    ]
    moved = [
        change
        for one, other in pairs
        for change in changes(one.token_ids, one.logprobs, other.token_ids, other.logprobs)
    ]
    prompts = [
        change
        for one, other in pairs
        for change in prompt_changes(one.prompt_logprobs, other.prompt_logprobs)
    ]
    plain = len(LENGTHS)
    return Control(
        prompts=tuple(request.prompt for request in requests[:plain]),
        ids=tuple(answer.token_ids for answer in together[:plain]),
        gaps=tuple(answer.gaps for answer in together[:plain]),
        band=max(moved, default=0.0),
        prompt_band=max(prompts, default=0.0),
        tokens=len(moved),
    )
