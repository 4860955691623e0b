"""What the ranks of a tensor-parallel group do together in a step of ours.

Owns: the sum over ranks as vLLM makes it, the mailboxes through which our own kernels exchange
shares of a row, whether a wait for another rank was in vain. Does not own: device code, the order
of a step (`decode`), which sums go which way (`plan`). Knows no class of vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from kimi_k3.intree.watch import Watch
from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.oproj.mailbox import End, PeerLostError, loop_back, symmetric

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

CAPACITY = 64
"""Rows a mailbox has room for."""


def exchanges(hidden: int, latent: int, experts: int, ranks: int) -> list[Exchange]:
    """What ranks tell each other, in the order of `Mailboxes`."""
    each = (hidden, (2 * experts + latent) // ranks, latent, hidden // ranks, hidden // ranks)
    return [Exchange(ranks, width, CAPACITY) for width in each]


class Mailboxes(NamedTuple):
    """A rank's ends of every exchange of a layer; D hidden, L latent, E experts, R ranks."""

    row: End
    """Shares of a row [D] behind attention."""
    front: End
    """Each rank's logits and latent columns: 2 E / R + L / R."""
    latent: End
    """Shares of a row [L] behind the routed experts."""
    shares: End
    """Shares of the shared experts' columns [D / R], to the rank that owns them."""
    columns: End
    """Finished columns [D / R]."""


class Ranks:
    """One rank's side."""

    def __init__(
        self, size: int, total: Callable[[Tensor], Tensor] = lambda share: share, rank: int = 0
    ) -> None:
        """`total`: the sum of every rank's tensor, on every rank; of one rank, the tensor."""
        self.size, self.rank = size, rank
        self._total = total
        self._group: ProcessGroup | None = None
        self.boxes: Mailboxes | None = None
        """None where no op of ours uses them."""
        self._lost: Tensor | None = None
        self._done: Tensor | None = None
        self.watch: Watch | None = None

    def connect(
        self, exchanges: Sequence[Exchange], device: torch.device, group: ProcessGroup | None
    ) -> None:
        """Make the mailboxes, in the order of `Mailboxes`. Every rank calls it, on a GPU that
        reaches the others'; one rank alone needs no group. The CPU's group is enough, as for
        vLLM's own all-reduce: hosts meet, and tell each other where the memory is."""
        self._group = group
        ends = [
            loop_back(one, str(device))[0] if group is None else symmetric(one, group)
            for one in exchanges
        ]
        self.boxes = Mailboxes(*ends)
        if group is not None:
            # On the host, whatever torch's default device is while a model is made.
            self._lost = torch.zeros(len(ends), dtype=torch.int32, device="cpu").pin_memory()
            done = self._done = torch.zeros(1, dtype=torch.int64, device="cpu").pin_memory()
            self.watch = Watch(lambda: int(done))

    def part(self, whole: Tensor) -> Tensor:
        """This rank's rows of a matrix all ranks have."""
        return whole.chunk(self.size)[self.rank]

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
        if self.boxes is None or self._group is None:
            return
        self._meet()
        for end in self.boxes:
            end.clear()
        self._meet()

    def _meet(self) -> None:
        torch.cuda.synchronize()
        torch.distributed.barrier(self._group)

    def tell(self, executed: Tensor) -> None:
        """Captured at the end of a step: let the host know whether a wait was in vain, and that the
        step has ended. `executed` int64 [1]: how many have."""
        if self.boxes is not None and self._lost is not None:
            words = torch.cat([end.turn[-1:] for end in self.boxes])
            self._lost.copy_(words, non_blocking=True)
        if self._done is not None:
            self._done.copy_(executed, non_blocking=True)

    def check(self) -> None:
        """Raises PeerLostError if an earlier step waited in vain. Does not wait for the device, so
        it may learn of it a step late; results since then are NaN on this rank."""
        if self._lost is not None and bool(self._lost.any()):
            raise PeerLostError("a rank did not send its share of a row: all ranks must stop")

    def wait(self) -> None:
        """The same, waiting for the device."""
        for end in self.boxes or ():
            end.check()
