"""Stock or specialised, for one engine step.

Owns: the decision and its reasons. Does not own: the facts (the metadata builder collects them),
the record of the decision (`evidence`), the paths themselves. Read by: the model's forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Path = Literal["specialised", "stock", "profile"]
Switch = Literal["auto", "latency_specialized"]


@dataclass(frozen=True)
class StepFacts:
    """What one engine step asks for. Equal on every tensor-parallel rank: the scheduler's words.

    A row is one request of the step. Rows are one of: a one-token decode, a verification (a decode
    that carries draft tokens), or prefill (everything else, one-token prompts included).
    """

    requests: int
    tokens: int
    decode_rows: int
    verify_rows: int
    verify_tokens: int = 0
    """Tokens of each row if every row is a verification and all have as many, else 0."""

    @property
    def prefill_rows(self) -> int:
        """Rows that bring prompt tokens, or tokens recomputed after a preemption."""
        return self.requests - self.decode_rows - self.verify_rows

    @property
    def prefill_tokens(self) -> int:
        """Tokens of all rows but one-token decodes; none of a uniform verification either."""
        return 0 if self.verify_tokens else self.tokens - self.decode_rows


@dataclass(frozen=True)
class Plan:
    """The path of one step, and why in a few stable words."""

    path: Path
    reason: str


PROFILE = Plan("profile", "no request metadata")
SWITCHED_OFF = Plan("stock", "switched off")
EMPTY = Plan("stock", "no rows")
PREFILL = Plan("stock", "prefill")
MIXED = Plan("stock", "prefill and decode mixed")
VERIFY = Plan("stock", "draft verification")
TOO_LARGE = Plan("stock", "batch above largest prepared")
DECODE = Plan("specialised", "pure decode")
VERIFIED = Plan("specialised", "uniform draft verification")


def plan(facts: StepFacts | None, switch: Switch, prepared: Sequence[int], tokens: int = 1) -> Plan:
    """Decide one step. `prepared`: batch sizes the executor has prepared, any order; `tokens`: the
    most tokens per request it has prepared.

    The specialised path runs only for a step that fits a prepared batch (smaller batches run in the
    next larger one) and in which every row is a one-token decode, or every row verifies the same
    prepared number of tokens. Everything else is stock:

    - profile run, warm-up: the engine gives no metadata, no cache is read or written;
    - the switch is `auto`, which is the default;
    - no rows at all;
    - prefill: whole prompts, chunks of prompts, one-token prompts, recomputation after preemption;
    - prefill and decode in one step;
    - any row that verifies draft tokens, unless all rows do and have equally many, within `tokens`;
    - more rows than the largest prepared batch.

    A pure function of the scheduler's step and of start-up constants: all ranks decide alike
    without asking each other.
    """
    if facts is None:
        return PROFILE
    if switch != "latency_specialized":
        return SWITCHED_OFF
    if not facts.requests:
        return EMPTY
    if facts.verify_rows and not 1 < facts.verify_tokens <= tokens:
        return VERIFY
    if facts.prefill_rows:
        return MIXED if facts.decode_rows else PREFILL
    if facts.requests > max(prepared, default=0):
        return TOO_LARGE
    return VERIFIED if facts.verify_rows else DECODE
