"""Over vLLM's own model: sums over ranks, and a rank that does not answer.

Protects: that several sums in one all-reduce are the sums apart, and that a wait in vain, which the
device tells a step later, ends the engine. The mailboxes themselves: `test_gpu_exchange`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kimi_k3.intree.ranks import Mailboxes, Ranks, exchanges
from kimi_k3.kernels.oproj.mailbox import PeerLostError, loop_back


def _doubled(share: Tensor) -> Tensor:
    assert share.is_contiguous()
    return 2 * share


def test_sums_in_one_all_reduce_are_the_sums_apart() -> None:
    calls: list[int] = []

    def total(share: Tensor) -> Tensor:
        calls.append(share.numel())
        return _doubled(share)

    shares = torch.randn(3, 5), torch.randn(3, 8).t().contiguous(), torch.randn(1)
    ranks = Ranks(2, total)
    for made, share in zip(ranks.totals(*shares), shares, strict=True):
        assert torch.equal(made, _doubled(share)) and made.is_contiguous()
    assert calls == [15 + 24 + 1]
    assert torch.equal(ranks.total(shares[0]), _doubled(shares[0]))


def test_one_rank_sums_nothing() -> None:
    share = torch.randn(2, 3)
    ranks = Ranks(1, _doubled)
    ranks.connect(exchanges(32, 32, 16, 1), torch.device("cpu"), None)
    assert ranks.total(share) is share and ranks.totals(share, share) == (share, share)
    ranks.restart()
    ranks.tell(torch.zeros(1))
    ranks.check()


def test_a_wait_in_vain_is_raised_at_the_next_step() -> None:
    ranks = Ranks(2, _doubled)
    ranks.boxes = Mailboxes(*(loop_back(one, "cpu")[0] for one in exchanges(32, 32, 16, 2)))
    ranks._lost = torch.zeros(5, dtype=torch.int32)
    ranks._done = torch.zeros(1, dtype=torch.int64)
    ranks.tell(torch.tensor([3]))
    assert int(ranks._done) == 3
    ranks.check()
    ranks.boxes.latent.turn[-1] = 1
    with pytest.raises(PeerLostError):
        ranks.wait()
    ranks.check()  # nobody has told yet
    ranks.tell(torch.tensor([4]))
    with pytest.raises(PeerLostError, match="all ranks must stop"):
        ranks.check()


def test_ranks_divide_a_matrix_between_them() -> None:
    whole = torch.arange(24).view(8, 3)
    parts = [Ranks(4, _doubled, rank).part(whole) for rank in range(4)]
    assert torch.equal(torch.cat(parts), whole) and all(one.is_contiguous() for one in parts)
