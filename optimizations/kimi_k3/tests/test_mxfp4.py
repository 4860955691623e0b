"""MXFP4 in plain torch, and how the kernels of the routed experts are cut.

Protects: the format by its specification's own numbers, packing as the inverse of unpacking; the
layout of vLLM's back end by what its repacking kernel does, and as the operands of an instruction;
that every row and column of an expert has one block and one stage; that shared memory suffices. The
kernels themselves: `test_gpu_kernels.py` and `test_gpu_moe.py`, on a GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kimi_k3.kernels.moe import form as moe
from kimi_k3.kernels.moe.mxfp4 import (
    GROUP,
    SIZES,
    dequantised,
    quantised,
    repacked,
    repacked_scales,
)
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


def _as_the_back_end_repacks(packed: Tensor) -> Tensor:
    """What humming's `weight_repack_nk` makes of 4-bit weights for 16-bit activations, thread by
    thread: int64 [E K/16, 2 N], words of 32 bits."""
    experts, rows, half = packed.shape
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).long()
    made = torch.zeros(experts * half // 8, 2 * rows, dtype=torch.int64)
    # The interleaving of a word's eight numbers: what two 16-bit numbers take lies 16 bits apart.
    order = [number % 4 * 2 + number // 4 for number in range(8)]
    for expert in range(experts):
        for block in range(rows // 64):
            for thread in range(32):
                for step in range(half // 8):
                    for tile in range(4):
                        held = [
                            codes[
                                expert,
                                64 * block + 16 * tile + 8 * low + thread // 4,
                                16 * step + 8 * right + thread % 4 * 2 + one,
                            ]
                            for low in range(2)
                            for right in range(2)
                            for one in range(2)
                        ]
                        word = sum(int(held[at]) << 4 * place for place, at in enumerate(order))
                        made[expert * half // 8 + step, 128 * block + 4 * thread + tile] = word
    return made


def test_weights_are_repacked_as_the_back_end_does() -> None:
    random = torch.Generator().manual_seed(1)
    packed = torch.randint(0, 256, (2, 128, 32), generator=random, dtype=torch.uint8)
    bytes_ = repacked(packed).view(-1, 4).long()
    words = bytes_[:, 0] | bytes_[:, 1] << 8 | bytes_[:, 2] << 16 | bytes_[:, 3] << 24
    assert torch.equal(words, _as_the_back_end_repacks(packed).flatten())


def test_scales_are_repacked_as_the_back_end_does() -> None:
    random = torch.Generator().manual_seed(2)
    scales = torch.randint(0, 256, (2, 128, 3), generator=random, dtype=torch.uint8)
    order = [8 * place + start for start in range(8) for place in range(8)]
    wanted = scales.transpose(1, 2).unflatten(-1, (-1, 64))[..., order].flatten(-2)
    assert torch.equal(repacked_scales(scales), wanted)


def test_a_lanes_words_are_the_operands_of_an_instruction_in_the_order_of_columns() -> None:
    """By the layout of `mma.m16n8k16`: register r of a lane has rows l // 4 + 8 (r % 2), columns 2
    (l % 4) + 8 (r // 2) and the next. `primitives.nibbles` makes registers of nibbles (0, 4), (2,
    6), (1, 5) and (3, 7)."""
    codes = torch.arange(64 * 16, dtype=torch.int64).view(64, 16)
    for low in range(4):  # four bits of each place, as four matrices
        part = (codes >> 4 * low & 15).to(torch.uint8)
        held = repacked((part[:, 0::2] | part[:, 1::2] << 4)[None])[0, 0, 0].view(32, 4, 4)
        for lane in range(32):
            for tile in range(4):
                nibbles = [int(byte) >> shift & 15 for byte in held[lane, tile] for shift in (0, 4)]
                for register, pair in enumerate(((0, 4), (2, 6), (1, 5), (3, 7))):
                    row = 16 * tile + lane // 4 + 8 * (register % 2)
                    column = lane % 4 * 2 + 8 * (register // 2)
                    wanted = part[row, column : column + 2].tolist()
                    assert [nibbles[one] for one in pair] == wanted


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
def test_every_repacked_weight_has_one_block_and_one_stage(device: Device) -> None:
    for batch in range(1, 65):
        form = moe.cut(896, 3584, 384, 16, batch, *device, kind=moe.Repacked)
        assert isinstance(form, moe.Repacked)
        assert form.hidden == moe.PIECE and form.parts * moe.PIECE == form.inter
        assert form.up_chunks * form.up_steps * moe.STEP == form.latent
        assert form.up_steps * moe.STEP == moe.WARPS * GROUP
        assert form.down_bytes <= form.stage_bytes and form.stage_bytes % 1024 == 0
        assert form.crews * form.parts <= form.resident * device.multiprocessors
        assert form.units * form.crews >= form.pairs
        each = form.shared_bytes + moe.BARRIERS + moe.RESERVED
        assert form.stages >= 4 and form.resident * each <= device.shared_bytes + moe.RESERVED
        assert form.experts + 1 + moe.WARPS + 1 + form.pairs <= form.scratch
        # Both buffers in which halves of the second product meet.
        assert form.scratch >= 2 * 4 * 32 * 4
        # A lane stores two sums at once, so no token's may be half of a pair.
        assert form.columns <= form.pitch and form.pitch % 2 == 0


@pytest.mark.parametrize(
    ("batch", "crews", "resident", "stages"),
    [(1, 16, 1, 11), (2, 32, 2, 4), (4, 22, 1, 12), *((b, 44, 2, 4) for b in (8, 16, 32, 64))],
)
def test_forms_for_repacked_weights_are_those_that_were_measured(
    batch: int, crews: int, resident: int, stages: int
) -> None:
    """Others were slower, as an op or in a layer, or were never run ("Weights once in memory")."""
    form = moe.cut(896, 3584, 384, 16, batch, *H200, kind=moe.Repacked)
    assert (form.crews, form.resident, form.stages) == (crews, resident, stages)


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
