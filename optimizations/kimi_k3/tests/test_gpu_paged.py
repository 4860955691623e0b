"""KDA on an engine's pages: slots that lie apart, with other data between them.

Protects: the bits of the kernel for adjacent slots, in outputs and in states, and what lies between
slots. Needs an NVIDIA GPU of compute capability 9.0 and CuTe DSL.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
pytest.importorskip("cutlass")

from kimi_k3.cases.gpu.kda import BOUND, KdaCase  # noqa: E402
from kimi_k3.kernels.gpu import Bound  # noqa: E402
from kimi_k3.kernels.kda.launch import kda, paged  # noqa: E402

HEADS = 12


def _pages(conv: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One page per slot: its history, its state, and bytes of nobody; the two pools as views."""
    slots = len(conv)
    history, state = conv[0].nbytes, recurrent[0].nbytes
    page = -(-(history + state) // 4096) * 4096 + 4096
    memory = torch.full((slots, page), 0x5A, dtype=torch.uint8, device=conv.device)
    first = memory[:, :history].view(torch.bfloat16).view(slots, *conv.shape[1:])
    second = memory[:, history : history + state].view(torch.float32).view(recurrent.shape)
    first.copy_(conv)
    second.copy_(recurrent)
    return memory, first, second


@pytest.mark.parametrize(("batch", "null"), [(1, 0), (5, 2), (16, 0), (64, 0)])
def test_pages_hold_what_adjacent_slots_would(batch: int, null: int) -> None:
    regime = {"heads": HEADS, "tokens": 1, "null": null, "moved": 0, "batch": batch}
    inputs = {name: one.cuda() for name, one in KdaCase().inputs(regime, 3).items()}
    fixed = {n: one.contiguous() for n, one in inputs.items() if n not in ("conv", "recurrent")}
    fixed["projected"] = fixed["projected"].flatten(0, 1)
    conv, recurrent = inputs["conv"].clone(), inputs["recurrent"].clone()
    memory, paged_conv, paged_state = _pages(conv, recurrent)
    y = torch.empty(batch, HEADS * 128, dtype=torch.bfloat16, device="cuda")
    other = torch.empty_like(y)
    Bound(kda(HEADS, batch, 1, len(conv), BOUND), **fixed, conv=conv, recurrent=recurrent, y=y)()
    kernel = paged(HEADS, batch, BOUND, paged_conv.stride(0), paged_state.stride(0))
    Bound(kernel, **fixed, conv=paged_conv[:1], recurrent=paged_state[:1], y=other)()
    for found, wanted in ((other, y), (paged_conv, conv), (paged_state, recurrent)):
        kind = torch.int16 if found.element_size() == 2 else torch.int32
        assert torch.equal(found.view(kind), wanted.view(kind))
    used = conv[0].nbytes + recurrent[0].nbytes
    assert bool((memory[:, used:] == 0x5A).all())
