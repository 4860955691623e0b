"""Mailboxes of an exchange between GPUs: memory, addresses, and whether a wait was in vain.

Owns: allocation, all of it before a graph is captured; who writes where. Does not own: device code.
Read by: cases, the benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kimi_k3.kernels.oproj.form import TURN, Exchange

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class PeerLostError(RuntimeError):
    """A rank waited longer than the limit for another: results since then are NaN."""


@dataclass(frozen=True)
class End:
    """One rank's end of an exchange, kept alive by whoever launches or has captured a launch."""

    exchange: Exchange
    mailbox: Tensor
    """[generations, ranks, capacity, hidden] BF16, written by every rank."""
    peers: Tensor
    """int64 [ranks]: where each rank's mailbox has this rank's rows."""
    turn: Tensor
    """int32 [3]: see `form.TURN`."""

    def check(self) -> None:
        """Wait for the device; raises PeerLostError where some wait was in vain."""
        if int(self.turn[-1]):
            raise PeerLostError(f"no answer within {self.exchange.looks} looks at a mailbox")

    def clear(self) -> None:
        """Make it as new. Every rank must, after all have stopped and before one sends."""
        self.mailbox.view(torch.int16).fill_(-1)
        self.turn.zero_()


def _end(exchange: Exchange, own: Tensor, places: list[int]) -> End:
    peers = torch.tensor(places, dtype=torch.int64, device=own.device)
    made = End(exchange, own, peers, torch.zeros(TURN, dtype=torch.int32, device=own.device))
    made.clear()
    return made


def loop_back(exchange: Exchange, device: str = "cuda") -> list[End]:
    """Ends of all ranks on one GPU."""
    shape = exchange.shape
    mailboxes = [
        torch.empty(shape, dtype=torch.bfloat16, device=device) for _ in range(exchange.ranks)
    ]
    return [
        _end(exchange, own, [mailbox[0, rank].data_ptr() for mailbox in mailboxes])
        for rank, own in enumerate(mailboxes)
    ]


def echo(exchange: Exchange, device: str = "cuda") -> End:
    """One end whose rank is taken for all of them: what it sends fills every rank's place in its
    own mailbox. The traffic of one rank, on one GPU."""
    own = torch.empty(exchange.shape, dtype=torch.bfloat16, device=device)
    return _end(exchange, own, [own[0, rank].data_ptr() for rank in range(exchange.ranks)])


def symmetric(exchange: Exchange, group: ProcessGroup) -> End:
    """This process's end, on the current device; every process of the group calls it, each on a GPU
    of one host that reaches the others'. No multicast is asked for."""
    import torch.distributed as dist
    from torch.distributed import _symmetric_memory as symmetric_memory

    device = torch.device("cuda", torch.cuda.current_device())
    own = symmetric_memory.empty(exchange.shape, dtype=torch.bfloat16, device=device)
    handle = symmetric_memory.rendezvous(own, group)
    ranks = range(exchange.ranks)
    mailboxes = [handle.get_buffer(rank, exchange.shape, torch.bfloat16) for rank in ranks]
    rank = dist.get_rank(group)
    made = _end(exchange, own, [mailbox[0, rank].data_ptr() for mailbox in mailboxes])
    torch.cuda.synchronize()
    dist.barrier(group)  # nobody sends into a mailbox that is not empty yet
    return made
