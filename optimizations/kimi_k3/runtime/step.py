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
    """int64 [KDA layers, B] state slot of each request, or [B] where all layers share one.

    An engine that keeps layers in several cache groups gives a request another slot in each.
    """
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
    """int64 [KDA layers, P], 0 for padding."""
    owned: Tensor
    """bool [KDA layers, P] whether the slot may be written: not for padding or null slots."""
    write: Tensor
    """int64 [P] MLA cache row to write, 0 for padding."""
    writable: Tensor
    """bool [P] whether it may be written: not for padding or rows of the null page."""
    context: Tensor
    """int64 [P, T] cache rows of each request, its last repeated to the end."""
    visible: Tensor
    """bool [P, T] true up to a request's length."""


def rows(step: DecodeStep, kda_layers: int, prepared: int, page: int) -> Rows:
    """Lay `step` out for `prepared` rows, at least as many as it has; `page` rows per cache page.

    Padding is one token long and points at slot 0 and page 0, which the engine never reads.
    """
    slots, write, table = step.slots.long(), step.slot_mapping.long(), step.block_table.long()
    last = step.seq_lens.long() - 1
    padding = prepared - write.shape[0]
    if padding:
        slots, write, last = (functional.pad(one, (0, padding)) for one in (slots, write, last))
        table = functional.pad(table, (0, 0, 0, padding))
    # Compiled units trust their arguments' strides, and the engine's slots may be any view.
    slots, writable = slots.expand(kda_layers, -1).contiguous(), write >= page
    context = -(-step.max_seq_len // CONTEXT_STEP) * CONTEXT_STEP
    position = torch.arange(context)
    token = torch.minimum(position, last[:, None])
    return Rows(
        slots=slots,
        owned=slots > 0,
        write=torch.where(writable, write, 0),
        writable=writable,
        context=table.gather(1, token // page).mul_(page).add_(token % page),
        visible=position <= last[:, None],
    )
