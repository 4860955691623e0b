"""How GPU kernels are cut: whole, within shared memory, with room for a neighbour.

Protects what a wrong cut would break on a GPU only: rows that no block owns, blocks that do not
start, kernels that cannot run beside each other. Also which cells the claim measures. Needs no GPU.
"""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

from fasttrack.correctness.kernels import cell_id
from kimi_k3.cases.gpu import LEFT_OUT, cases, claimed
from kimi_k3.kernels.kda import form as kda
from kimi_k3.kernels.mla import form as mla
from kimi_k3.kernels.projection.form import BOX, DEVICES, NEIGHBOUR, Device, cut

MAPS = ((6288, 7168), (3648, 7168), (2304, 1536), (7168, 1536), (7168, 768), (1152, 1536))
RESERVED = 1024
"""Bytes of shared memory the driver keeps for itself per block."""


@pytest.mark.parametrize("device", DEVICES.values(), ids=list(DEVICES))
@pytest.mark.parametrize(("outputs", "inputs"), MAPS)
def test_every_row_has_one_block_and_the_block_fits(
    outputs: int, inputs: int, device: Device
) -> None:
    for batch in range(1, 65):
        form = cut(outputs, inputs, batch, device)
        assert form.blocks <= device.multiprocessors
        assert (form.blocks - 1) * form.rows < outputs <= form.blocks * form.rows
        assert form.chunks * form.boxes * BOX == inputs
        assert 2 <= form.ring <= form.chunks
        assert form.held_batch >= batch and form.held_rows >= form.rows
        assert form.shared_bytes <= device.shared_bytes


def test_a_block_of_kda_fits_beside_a_projection_of_a_small_batch() -> None:
    for heads, batch in ((12, 1), (12, 8), (6, 3)):
        parts, warps = kda.cut(heads, batch)
        layer = kda.Heads(heads, batch, 1, kda.pitch(heads), 8, -5.0, parts, warps)
        assert layer.shared_bytes + RESERVED <= NEIGHBOUR


@pytest.mark.parametrize("batch", [0, 65])
def test_other_batches_are_refused(batch: int) -> None:
    with pytest.raises(ValueError, match="batch"):
        cut(6288, 7168, batch, DEVICES["sm_90a"])


@pytest.mark.parametrize("heads", [6, 12, 24, 96])
def test_a_cut_covers_a_head_and_its_registers_hold_the_rows(heads: int) -> None:
    for batch in range(1, 65):
        parts, warps = kda.cut(heads, batch)
        layer = kda.Heads(heads, batch, 1, kda.pitch(heads), batch + 1, -5.0, parts, warps)
        assert layer.rows * parts == kda.WIDTH and layer.warp_rows * warps == layer.rows
        assert layer.warp_rows <= 16 and parts <= 8
        assert layer.pitch % 16 == 0 and layer.pitch >= (4 * heads + 1) * 128 + heads


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("heads", [6, 12, 96])
def test_a_core_takes_every_query_and_fits_with_its_neighbours(heads: int, fp8: bool) -> None:
    for batch in range(1, 65):
        for tokens in (1, 2, 4, 5, 8):
            parts = mla.splits(batch, heads * tokens)
            form = mla.Attend(heads, batch, tokens, 1 << 20, 64, 512, fp8, parts)
            together = mla.together(batch, form.rows)
            assert form.groups * form.held >= form.rows and form.held <= mla.MOST_QUERIES
            assert form.stages >= 2 and form.shared_bytes * together <= mla.SHARED_BYTES
            assert parts == 1 or parts * batch * form.groups <= mla.BLOCKS * together
            # Whole tiles, columns and loads for every warp.
            assert form.tile % (mla.PRODUCERS * 8) == 0 and form.sections * form.tile == 128
            assert form.row_bytes % (32 * form.sections) == 0


def test_values_of_all_rows_and_parts_have_a_place() -> None:
    for rows in range(1, 65):
        form = mla.Finish(12, rows, mla.splits(rows, 12))
        assert form.groups * mla.GROUP >= rows and mla.GROUP % form.spread == 0
        assert form.spread >= min(rows, mla.GROUP)


def test_the_claim_leaves_out_what_it_names_and_every_cut_keeps_a_cell() -> None:
    for whole, few in zip(cases(), claimed(), strict=True):
        every = [cell_id(whole.op, regime) for regime in whole.regimes()]
        kept = [cell_id(few.op, regime) for regime in few.regimes()]
        globs = [f"{whole.op}/{glob}" for glob in LEFT_OUT.get(whole.op, ())]
        assert all(any(fnmatch(cell, glob) for cell in every) for glob in globs)
        assert [c for c in every if not any(fnmatch(c, glob) for glob in globs)] == kept
    few = {case.op: case.regimes() for case in claimed()}
    cuts = {kda.cut(one["heads"], one["batch"]) for one in few["kda"]}
    assert cuts == {kda.cut(12, batch) for batch in range(1, 65)}
    for outputs, inputs in MAPS[:4]:
        own = [one for one in few["projection"] if one["outputs"] == outputs]
        batches = {one["batch"] for one in own if one["inputs"] == inputs}
        assert {1, 8, 16, 64} <= batches
