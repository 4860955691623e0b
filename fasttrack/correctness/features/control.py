"""Stock against stock: the same requests alone, together and in a crowd. Not a feature by itself.

Batched matrix products add up in another order when the batch changes, so stock's own
log-probabilities move a little. That movement is the unit of every tolerance of this stage.
"""

from __future__ import annotations

from fasttrack.correctness.features.probe import Control, Probe, changes, greedy
from fasttrack.engine.base import Request

LENGTHS = (1, 4, 9, 21, 64, 130)
TOKENS = 12
CROWD = 10


def measure(probe: Probe) -> Control:
    """This session's answers to the control prompts, and the band over three compositions."""
    probe.feature = "control"
    requests = [
        Request(prompt=probe.prompt(length, length), sampling=greedy(TOKENS)) for length in LENGTHS
    ]
    crowd = [
        Request(prompt=probe.prompt(5 + i, -1 - i), sampling=greedy(TOKENS)) for i in range(CROWD)
    ]
    batches = ([*requests], *([one] for one in requests), [*requests[::-1], *crowd])
    # A lost answer ends in no record here: the features that lose one tell.
    together, *rest = (list(probe.ask_all(batch, whole=False).answers) for batch in batches)
    alone = [answer for batch in rest[:-1] for answer in batch]
    crowded = rest[-1][: len(requests)][::-1]
    moved = [
        change
        for one, *others in zip(together, alone, crowded, strict=False)
        for other in others
        for change in changes(one.token_ids, one.logprobs, other.token_ids, other.logprobs)
    ]
    return Control(
        prompts=tuple(request.prompt for request in requests),
        ids=tuple(answer.token_ids for answer in together),
        gaps=tuple(answer.gaps for answer in together),
        band=max(moved, default=0.0),
        tokens=len(moved),
    )
