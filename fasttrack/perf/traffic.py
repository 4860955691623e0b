"""What is asked of the engine in one cell: calls of requests, for each of the three workloads.

Every prompt is the cell's context long, begins with a number of its own, and is the same in all
sessions of a run. Owns no session and no clock. Read by `sweep`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fasttrack.engine.base import Request, Sampling
from fasttrack.perf.window import PREFILL_ROUNDS, WARM_UP_STEPS
from fasttrack.schema import Cell

LEAD_STEPS = 4
"""Decode steps of a mixed cell before the first prompt arrives beside its lanes."""


@dataclass(frozen=True)
class Call:
    """Requests that run together, and the full decode steps after which they end early."""

    requests: tuple[Request, ...]
    full_decode_steps: int | None = None
    lane_tokens: int = 1
    """Tokens that each request decodes in such a step."""


@dataclass(frozen=True)
class Work:
    """What a cell needs to know of target and tier."""

    cell: Cell
    window_steps: int
    budget: int
    """Most tokens of one engine step."""
    room: int
    """Most tokens an answer may have."""

    @property
    def prompts(self) -> int:
        """Prompts the cell needs in all."""
        batch = self.cell.batch
        if self.cell.workload == "prefill":
            return PREFILL_ROUNDS * batch
        return batch + (self.arrivals if self.cell.workload == "mixed" else 0)

    @property
    def _prefill_steps(self) -> int:
        return math.ceil(self.cell.batch * self.cell.context_tokens / self.budget)

    @property
    def _chunks(self) -> int:
        """Steps in which one prompt beside the lanes is prefilled."""
        return math.ceil(self.cell.context_tokens / max(1, self.budget - self.cell.batch))

    @property
    def arrivals(self) -> int:
        """Prompts that arrive beside the lanes: in every other step something is prefilled."""
        return max(2, self.window_steps // (2 * self._chunks))


def calls(work: Work, prompts: Sequence[tuple[int, ...]]) -> Iterator[Call]:
    """The calls of a cell over its `work.prompts` prompts, in order."""
    batch = work.cell.batch
    if work.cell.workload == "prefill":
        one = Sampling(max_tokens=1)
        for start in range(0, len(prompts), batch):
            chosen = prompts[start : start + batch]
            yield Call(tuple(Request(prompt=prompt, sampling=one) for prompt in chosen))
        return
    # Room to wait for the last prefill.
    steps = work._prefill_steps + work.window_steps + WARM_UP_STEPS + 4
    if work.cell.workload == "mixed":
        every = 2 * work._chunks
        steps = work._prefill_steps + LEAD_STEPS + WARM_UP_STEPS + every * (work.arrivals + 1)
    lanes = Sampling(max_tokens=min(steps * work.cell.lane_tokens, work.room))
    requests = [Request(prompt=prompt, sampling=lanes) for prompt in prompts[:batch]]
    if work.cell.workload == "decode":
        yield Call(tuple(requests), work.window_steps + WARM_UP_STEPS, work.cell.lane_tokens)
        return
    first = work._prefill_steps + LEAD_STEPS + WARM_UP_STEPS
    requests += [
        Request(prompt=prompt, sampling=Sampling(max_tokens=1), arrive_after=first + every * index)
        for index, prompt in enumerate(prompts[batch:])
    ]
    yield Call(tuple(requests))
