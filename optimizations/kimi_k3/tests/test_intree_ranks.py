"""Over vLLM's own model: sums over ranks, and a rank that does not answer.

Protects: that several sums in one all-reduce are the sums apart, and that a wait in vain, which the
device tells a step later, ends the engine. The mailboxes themselves: `test_gpu_exchange`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kimi_k3.intree.ranks import Ranks
from kimi_k3.kernels.oproj.form import Exchange
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
    assert ranks.total(share) is share and ranks.totals(share, share) == (share, share)
    ranks.restart()
    ranks.tell()
    ranks.check()


def test_a_wait_in_vain_is_raised_at_the_next_step() -> None:
    ranks = Ranks(2, _doubled)
    ranks.row = loop_back(Exchange(2, 8, 4), "cpu")[0]
    ranks._lost = torch.zeros(1, dtype=torch.int32)
    ranks.tell()
    ranks.check()
    ranks.row.turn[-1] = 1
    ranks.check()  # nobody has told yet
    ranks.tell()
    with pytest.raises(PeerLostError, match="all ranks must stop"):
        ranks.check()
