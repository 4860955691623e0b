"""One decode step as the executor takes it, and what its rows tell the compiled units.

Owns: the step's definition, the state each request starts from, padding, cache rows of each
request's context. Does not own: buffers or caches. Read by: the model (which fills a
`DecodeStep`), the executor, kernel cases.
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
    """One step of decode: `tokens` tokens of every request, each with tokens before them.

    One token is plain decode. Several are a verification: the last kept token and drafts after it,
    of which the engine will keep some. Token t leaves its KDA states in column t of the request's
    slots, and the step after starts from the column of the last token that was kept.
    """

    slots: Tensor
    """int64 [KDA layers, B, S] state slots of each request, S >= tokens columns.

    An engine that keeps layers in several cache groups gives a request other slots in each.
    """
    block_table: Tensor
    """int64 [B, at least ceil(max_seq_len / page size)] MLA cache pages of each request."""
    slot_mapping: Tensor
    """int64 [B * tokens] MLA cache row, page * page size + offset, of each new token."""
    seq_lens: Tensor
    """int64 [B] tokens of each request, the new ones included."""
    max_seq_len: int
    """At least the largest of `seq_lens`; the cost of attention grows with it."""
    tokens: int = 1
    """Tokens per request."""
    accepted: Tensor | None = None
    """int64 [B] 1 to S: tokens kept of each request's last verification, so its live state is in
    column `accepted` - 1, where a lone token also leaves it. None: 1 for all."""


class Rows(NamedTuple):
    """A step of q tokens over P prepared requests, of which the first are real; T context rows."""

    source: Tensor
    """int64 [KDA layers, P] slot the first token starts from, 0 for padding."""
    slots: Tensor
    """int64 [KDA layers, q, P] slot each token leaves its state in, 0 for padding."""
    owned: Tensor
    """bool [KDA layers, q, P] whether it may be written: not for padding or null slots."""
    write: Tensor
    """int64 [q, P] MLA cache row to write, 0 for padding."""
    writable: Tensor
    """bool [q, P] whether it may be written: not for padding or rows of the null page."""
    context: Tensor
    """int64 [P, T] cache rows of each request, its last repeated to the end."""
    visible: Tensor
    """bool [P, q, T] true up to and including the token itself."""


def rows(step: DecodeStep, prepared: int, page: int) -> Rows:
    """Lay `step` out for `prepared` requests, at least as many as it has; `page` rows per page.

    Padding is as long as the step's tokens and points at slot 0 and page 0, which the engine never
    reads. Raises ValueError for a live state in a column a request does not have; of requests
    without slots of their own the count means nothing, whatever it is.
    """
    tokens = step.tokens
    source, slots = _states(step)
    write = step.slot_mapping.long().view(-1, tokens).t()
    table, lengths = step.block_table.long(), step.seq_lens.long()
    padding = prepared - lengths.shape[0]
    if padding:
        source, slots, write = (functional.pad(one, (0, padding)) for one in (source, slots, write))
        lengths = functional.pad(lengths, (0, padding), value=tokens)
        table = functional.pad(table, (0, 0, 0, padding))
    # Compiled units trust their arguments' strides, and the engine's slots may be any view.
    source, slots, write = source.contiguous(), slots.contiguous(), write.contiguous()
    writable = write >= page
    context = -(-step.max_seq_len // CONTEXT_STEP) * CONTEXT_STEP
    position = torch.arange(context)
    own = lengths[:, None] + torch.arange(-tokens, 0)  # [P, q] position of each token
    token = torch.minimum(position, own[:, -1:])
    return Rows(
        source=source,
        slots=slots,
        owned=slots > 0,
        write=torch.where(writable, write, 0),
        writable=writable,
        context=table.gather(1, token // page).mul_(page).add_(token % page),
        visible=position <= own[:, :, None],
    )


def _states(step: DecodeStep) -> tuple[Tensor, Tensor]:
    """Slots to start from [KDA layers, B] and to leave states in [KDA layers, q, B]."""
    slots = step.slots.long().clamp(min=0)
    if step.accepted is None:
        live = slots[:, :, 0]
    else:
        columns = slots.shape[2]
        accepted = step.accepted.long()
        wrong = ((accepted < 1) | (accepted > columns)) & (slots > 0).any(2).any(0)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            count = int(accepted[row])
            raise ValueError(f"request {row}: {count} of {columns} tokens kept of its last step")
        column = (accepted.clamp(1, columns) - 1)[None, :, None].expand(slots.shape[0], -1, 1)
        live = slots.gather(2, column)[:, :, 0]
    if step.tokens == 1:
        return live, live[:, None]
    return live, slots[:, :, : step.tokens].transpose(1, 2)
