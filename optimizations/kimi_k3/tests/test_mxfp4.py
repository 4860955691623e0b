"""MXFP4 in plain torch, and how the kernels of the routed experts are cut.

Protects: the format by its specification's own numbers, packing as the inverse of unpacking; that
every row and column of an expert has one block and one stage; that shared memory suffices. The
kernels themselves: `test_gpu_kernels.py` and `test_gpu_moe.py`, on a GPU.
"""

from __future__ import annotations

import pytest
import torch

from kimi_k3.kernels.moe import form as moe
from kimi_k3.kernels.moe.mxfp4 import GROUP, SIZES, dequantised, quantised
from kimi_k3.kernels.projection.form import DEVICES, H200, Device


def test_every_code_has_the_number_of_the_specification() -> None:
    packed = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2, dtype=torch.uint8)
    found = dequantised(packed, torch.tensor([128], dtype=torch.uint8))
    wanted = torch.tensor([2 * size for size in SIZES])
    assert torch.equal(found, torch.cat((wanted, -wanted)).repeat(2))
    assert bool(torch.signbit(found[8]))  # minus zero


def test_scales_are_powers_of_two_and_one_is_nan() -> None:
    packed = torch.full((4, GROUP // 2), 0x22, dtype=torch.uint8)  # ones
    scales = torch.tensor([[127], [0], [254], [255]], dtype=torch.uint8)
    found = dequantised(packed, scales, torch.float64)[:, 0]
    assert found[:3].tolist() == [1.0, 2.0**-127, 2.0**127] and bool(found[3].isnan())


def test_packing_keeps_what_the_format_holds() -> None:
    random = torch.Generator().manual_seed(0)
    packed = torch.randint(0, 256, (64, 256), generator=random, dtype=torch.uint8)
    scales = torch.randint(100, 150, (64, 16), generator=random, dtype=torch.uint8)
    exact = dequantised(packed, scales, torch.float64)
    assert torch.equal(dequantised(*quantised(exact), torch.float64), exact)


def test_packing_rounds_to_nearest_and_ties_to_the_even_code() -> None:
    row = torch.zeros(GROUP)
    row[:8] = torch.tensor([4.0, 0.25, 0.75, 1.25, 2.5, -3.5, 5.0, -0.2])
    found = dequantised(*quantised(row))
    assert found[:8].tolist() == [4.0, 0.0, 1.0, 1.0, 2.0, -4.0, 4.0, -0.0]


def test_packing_zeros_gives_zeros() -> None:
    packed, scales = quantised(torch.zeros(2, GROUP))
    assert bool((dequantised(packed, scales) == 0).all())


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_every_weight_of_an_expert_has_one_block_and_one_stage(device: Device) -> None:
    for batch in range(1, 65):
        form = moe.cut(896, 3584, 384, 16, batch, *device)
        assert form.hidden * moe.PARTS == form.inter and form.outs * moe.PARTS == form.latent
        assert form.up_chunks * moe.LINE * 2 == form.latent
        assert form.down_chunks * moe.DOWN_ROWS == form.outs
        assert moe.DOWN_ROWS // moe.FOLD * form.lines * moe.LINE == form.weight_bytes
        assert form.crews * moe.PARTS <= form.resident * device.multiprocessors
        assert form.units * form.crews >= form.pairs
        # All blocks of a multiprocessor fit, with what the driver keeps of each.
        each = form.shared_bytes + moe.BARRIERS + moe.RESERVED
        assert form.stages >= 4 and form.resident * each <= device.shared_bytes + moe.RESERVED
        # Boxes begin where TMA's pattern does, so rows of both weights lie as they are read.
        assert form.stage_bytes % 1024 == 0 and form.rows // 2 * moe.LINE % 1024 == 0
        # What the plan needs beside each other, in the words where sums meet later.
        assert form.experts + 1 + moe.WARPS + 1 + form.pairs <= form.scratch


def test_an_expert_is_counted_with_its_scales() -> None:
    assert moe.cut(896, 3584, 384, 16, 1, *H200).bytes_per_expert == 2_193_408


@pytest.mark.parametrize(
    ("experts", "latent", "inter", "batch"),
    [(896, 3584, 192, 1), (896, 3600, 384, 1), (896, 3584, 384, 65), (2000, 3584, 384, 1)],
)
def test_other_shapes_are_refused(experts: int, latent: int, inter: int, batch: int) -> None:
    with pytest.raises(ValueError, match="no code"):
        moe.cut(experts, latent, inter, 16, batch, *H200)
