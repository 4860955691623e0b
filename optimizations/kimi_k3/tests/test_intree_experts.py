"""Experts read where vLLM has them: what is kept to know their layout again, and what is refused.

Protects: that weights in another layout than the kernel's are never read. Needs no GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kimi_k3.intree.experts import NAMES, Kept, extra_bytes, kept, located
from kimi_k3.kernels.moe.mxfp4 import repacked, repacked_scales


@pytest.fixture
def weights() -> Kept:
    random = torch.Generator().manual_seed(0)
    shapes = (4, 128, 64), (4, 128, 4), (4, 128, 32), (4, 128, 2)
    made = [torch.randint(0, 256, one, generator=random, dtype=torch.uint8) for one in shapes]
    return Kept(*made)


def _module(tensors: list[torch.Tensor]) -> Any:
    return SimpleNamespace(**dict(zip(NAMES, tensors, strict=True)))


def _rearranged(weights: Kept) -> list[torch.Tensor]:
    words = (repacked(one).view(torch.int32).flatten(2) for one in (weights.w13, weights.w2))
    scales = (repacked_scales(one) for one in (weights.s13, weights.s2))
    made = [one for pair in zip(words, scales, strict=True) for one in pair]
    return [one.view(torch.float8_e8m0fnu) if one.dtype == torch.uint8 else one for one in made]


def test_what_the_back_end_made_is_read_where_it_lies(weights: Kept) -> None:
    sample = kept(_module(list(weights)), sample=True)
    assert [len(one) for one in sample] == [2, 2, 2, 2]
    own = _module(_rearranged(weights))
    found = located(own, sample)
    assert [one.data_ptr() for one in found] == [getattr(own, n).data_ptr() for n in NAMES]
    assert torch.equal(found.w13, repacked(weights.w13))
    assert extra_bytes(found) == 0
    assert extra_bytes(weights) == sum(one.nbytes for one in weights)


@pytest.mark.parametrize("spoilt", range(4), ids=NAMES)
def test_another_layout_is_refused(weights: Kept, spoilt: int) -> None:
    sample = kept(_module(list(weights)), sample=True)
    same = _rearranged(weights)
    same[spoilt] = weights[spoilt].view(same[spoilt].dtype)  # as the checkpoint has it
    with pytest.raises(ValueError, match=f"{NAMES[spoilt]} is not in the layout"):
        located(_module(same), sample)
    same[spoilt] = torch.cat((same[spoilt], same[spoilt]), dim=-1)
    with pytest.raises(ValueError, match=f"{NAMES[spoilt]} has .* bytes"):
        located(_module(same), sample)
