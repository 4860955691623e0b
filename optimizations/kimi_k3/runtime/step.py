"""One decode step as the executor takes it, and what its rows tell the compiled units.

Owns: the step's definition, padding, cache rows of each request's context. Does not own: buffers
or caches. Read by: the model (which fills a `DecodeStep`), the executor, kernel cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

CONTEXT_STEP = 16
"""The context of a step is rounded up to this many rows, so that vector loops have no remainder."""


@dataclass(frozen=True)
class DecodeStep:
    """One step of pure decode: one token per request, every request with tokens before it."""

    slots: Tensor
    """int64 [B] KDA state slot of each request."""
    block_table: Tensor
    """int64 [B, at least ceil(max_seq_len / page size)] MLA cache pages of each request."""
    slot_mapping: Tensor
    """int64 [B] MLA cache row, page * page size + offset, where the new token's row goes."""
    seq_lens: Tensor
    """int64 [B] tokens of each request, the new one included."""
    max_seq_len: int
    """At least the largest of `seq_lens`; the cost of attention grows with it."""


class Rows(NamedTuple):
    """A step over P prepared rows, of which the first are the requests; T context rows."""

    slots: Tensor
    """int64 [P], 0 for padding."""
    write: Tensor
    """int64 [P] MLA cache row to write, 0 for padding."""
    live: Tensor
    """bool [P], false for padding and for requests in the engine's null slot: nothing is written
    for these."""
    context: Tensor
    """int64 [P, T] cache rows of each request, its last repeated to the end."""
    visible: Tensor
    """bool [P, T] true up to a request's length."""


def rows(step: DecodeStep, prepared: int, page: int) -> Rows:
    """Lay `step` out for `prepared` rows, at least as many as it has; `page` rows per cache page.

    Padding is one token long and points at slot 0 and page 0, which the engine never reads.
    """
    padding = prepared - step.slots.shape[0]
    slots, write, table = step.slots.long(), step.slot_mapping.long(), step.block_table.long()
    last = step.seq_lens.long() - 1
    if padding:
        slots, write, last = (functional.pad(one, (0, padding)) for one in (slots, write, last))
        table = functional.pad(table, (0, 0, 0, padding))
    live = slots > 0
    context = -(-step.max_seq_len // CONTEXT_STEP) * CONTEXT_STEP
    position = torch.arange(context)
    token = torch.minimum(position, last[:, None])
    return Rows(
        slots=slots,
        write=torch.where(live, write, 0),
        live=live,
        context=table.gather(1, token // page).mul_(page).add_(token % page),
        visible=position <= last[:, None],
    )
