"""How the sweep's prompts use the experts of a mixture, beside random tokens of the same lengths.

Asked of base, once all cells of a boot are measured, so that it costs no measured step anything.
Two sets of random tokens: how far they lie apart is what a difference must exceed. Owns what is
asked; what follows is the rule's. Read by `sweep`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fasttrack.engine.base import Session
from fasttrack.schema import RoutingRecord

MOST_PROMPTS = 8
ENOUGH_TOKENS = 1024


def measure(
    session: Session, name: str, prompts: Mapping[int, Sequence[tuple[int, ...]]]
) -> list[RoutingRecord]:
    """A record per context length.

    `prompts`: by their length, some of those that the sweep sent.
    """
    records = []
    for context, sent in sorted(prompts.items()):
        asked = sent[: min(MOST_PROMPTS, -(-ENOUGH_TOKENS // context))]
        own, random, again = (session.routing(asked, seed) for seed in (None, 1, 2))
        records.append(
            RoutingRecord(
                session=name, context_tokens=context, prompts=len(asked), experts=own.experts,
                sent=own.layers, random=random.layers, again=again.layers, problem=own.problem,
            )
        )  # fmt: skip
    return records
