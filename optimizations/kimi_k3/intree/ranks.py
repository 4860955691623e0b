"""What the ranks of a tensor-parallel group do together in a step of ours.

Owns: the sum over ranks as vLLM makes it, the mailboxes through which our own kernels exchange
shares of a row, whether a wait for another rank was in vain. Does not own: device code, the order
of a step (`decode`), which sums go which way (`plan`). Knows no class of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.oproj.mailbox import End, PeerLostError, symmetric

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

CAPACITY = 64
"""Rows a mailbox has room for."""


class Ranks:
    """One rank's side."""

    def __init__(self, size: int, total: Callable[[Tensor], Tensor]) -> None:
        """`total`: the sum of every rank's tensor, on every rank; of one rank, the tensor."""
        self.size = size
        self._total = total
        self._group: ProcessGroup | None = None
        self.row: End | None = None
        """Mailboxes for shares of a row; None where no op of ours uses them."""
        self._lost: Tensor | None = None

    def connect(self, hidden: int, group: ProcessGroup) -> None:
        """Make the mailboxes. Every rank calls it, on a GPU that reaches the others'."""
        self._group = group
        self.row = symmetric(Exchange(self.size, hidden, CAPACITY), group)
        self._lost = torch.zeros(1, dtype=torch.int32, pin_memory=True)

    def total(self, share: Tensor) -> Tensor:
        """Sum over ranks by vLLM's all-reduce."""
        return share if self.size == 1 else self._total(share)

    def totals(self, *shares: Tensor) -> tuple[Tensor, ...]:
        """The same of several tensors, in one all-reduce."""
        if self.size == 1:
            return shares
        summed = self._total(torch.cat([one.reshape(-1) for one in shares]))
        parts = summed.split([one.numel() for one in shares])
        return tuple(part.view_as(one) for part, one in zip(parts, shares, strict=True))

    def restart(self) -> None:
        """Make the mailboxes as new, once all ranks have stopped: a rank that was still compiling
        has let others wait."""
        if self.row is None:
            return
        torch.cuda.synchronize()
        torch.distributed.barrier(self._group)
        self.row.clear()
        torch.cuda.synchronize()
        torch.distributed.barrier(self._group)

    def tell(self) -> None:
        """Captured at the end of a step: let the host know whether a wait was in vain."""
        if self.row is not None and self._lost is not None:
            self._lost.copy_(self.row.turn[-1:], non_blocking=True)

    def check(self) -> None:
        """Raises PeerLostError if an earlier step waited in vain. Does not wait for the device, so
        it may learn of it a step late; results since then are NaN on this rank."""
        if self._lost is not None and int(self._lost):
            raise PeerLostError("a rank did not send its share of a row: all ranks must stop")
