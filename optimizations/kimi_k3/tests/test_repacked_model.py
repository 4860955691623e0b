"""The experts' kernel for repacked weights, lane by lane in numpy: which byte goes where.

Protects: the arithmetic of places in `moe.kernel.repacked`, which no compiler checks: what a stage
holds, what a lane reads of it, which hidden number a word of the inbox is, which output a lane has.
Whatever a formula there says is said here once more; sums are exact, so a wrong place is a wrong
number. The kernel itself: `test_gpu_moe.py`, on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kimi_k3.kernels.moe.form import COLUMNS, GROUP, PIECE, PIECE_BYTES, STEP, WARPS, Repacked
from kimi_k3.kernels.moe.mxfp4 import SIZES, dequantised, repacked, repacked_scales

Array = np.ndarray[Any, Any]
EXPERTS, LATENT, INTER, EXPERT = 3, 512, 384, 1
FORM = Repacked(EXPERTS, LATENT, INTER, 16, COLUMNS, 4.0, 25.0, 2, 4, 2)
LANE = np.arange(32)
NUMBERS = np.array([*SIZES, *(-size for size in SIZES)])
PAIRS = ((0, 4), (2, 6), (1, 5), (3, 7))
"""Nibbles of the registers that `primitives.nibbles` makes of a word."""


def _words(stage: Array, at: Array) -> Array:
    """Words of a stage, by lane: the registers of one instruction, [32, 4, 2]."""
    each = stage[at[:, None] + np.arange(4)].astype(np.uint32)
    word = each[:, 0] | each[:, 1] << 8 | each[:, 2] << 16 | each[:, 3] << 24
    return np.stack(
        [NUMBERS[np.stack([word >> 4 * one & 15 for one in pair], -1)] for pair in PAIRS], 1
    )


def _multiplied(left: Array, right: Array) -> Array:
    """`mma.m16n8k16` on registers of all lanes, [32, 4, 2] and [32, 2, 2] -> [32, 4]."""
    row, column = LANE // 4, 2 * (LANE % 4)
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    for one in range(2):
        for register in range(4):
            a[row + 8 * (register % 2), column + 8 * (register // 2) + one] = left[:, register, one]
        for register in range(2):
            b[column + 8 * register + one, row] = right[:, register, one]
    found = a @ b
    return np.stack([found[row + 8 * (i // 2), column + i % 2] for i in range(4)], 1)


def _group(words: list[Array], right: Array, scales: Array) -> Array:
    """16 rows of 32 columns: both instructions, times the scale of each row."""
    total = sum(_multiplied(words[k], right[:, 2 * k : 2 * k + 2]) for k in range(2))
    return np.asarray(total * 2.0 ** (scales[:, [0, 0, 1, 1]].astype(np.float64) - 127))


def _box(whole: Array, row: int, rows: int, column: int, width: int) -> Array:
    """A box as TMA lays it into a stage: tile `row` and `column` of the whole."""
    return whole[row * rows : (row + 1) * rows, column * width : (column + 1) * width].flatten()


def _hidden(w: Array, s: Array, z: Array) -> Array:
    """First product of every block; [blocks' inbox words, 2] by column, [8, I/2, 2]."""
    inbox = np.full((COLUMNS, INTER // 2, 2), np.nan)
    behind, side = FORM.weight_bytes, FORM.up_steps * PIECE_BYTES
    for part in range(FORM.parts):
        sums = np.zeros((FORM.rows, COLUMNS))
        for chunk in range(FORM.up_chunks):
            stage = np.zeros(FORM.stage_bytes, np.uint8)
            for half in range(2):
                row, column = EXPERT * FORM.up_chunks + chunk, half * FORM.parts + part
                stage[half * side :][:side] = _box(w, row, FORM.up_steps, column, PIECE_BYTES)
                place = behind + half * WARPS * PIECE
                stage[place:][: WARPS * PIECE] = _box(s, row, WARPS, column, PIECE)
            for warp in range(WARPS):
                first = warp * GROUP + chunk * WARPS * GROUP + LANE % 4 * 2
                places = first[:, None, None] + 8 * np.arange(4)[:, None] + np.arange(2)
                right = z[(LANE // 4)[:, None, None], places]
                for m in range(8):
                    half, tile = divmod(m, 4)
                    matrix = 2 * warp * PIECE_BYTES + LANE * 16 + half * side + 4 * tile
                    words = [_words(stage, matrix + k * PIECE_BYTES) for k in range(2)]
                    at = behind + warp * PIECE + LANE // 4 * 8 + half * WARPS * PIECE + 2 * tile
                    found = _group(words, right, stage[at[:, None] + np.arange(2)])
                    for i in range(4):
                        rows = 16 * m + 8 * (i // 2) + LANE // 4
                        sums[rows, 2 * (LANE % 4) + i % 2] += found[:, i]
        for pair in range(FORM.hidden // 2):
            for one in range(2):
                row = pair // 16 * GROUP + pair % 4 * 8 + pair // 4 % 4 * 2 + one
                word = part * (FORM.hidden // 2) + pair
                inbox[:, word, one] = _joined(sums[row], sums[row + FORM.hidden])
    return inbox


def _joined(gate: Array, up: Array) -> Array:
    """In place of SiTU: something that tells one from the other."""
    return gate + 0.5 * up


def _outputs(w: Array, s: Array, inbox: Array) -> Array:
    """Second product of every block, [8, L]."""
    made = np.full((COLUMNS, LATENT), np.nan)
    groups, steps = INTER // GROUP // 2, INTER // STEP
    each, more = divmod(LATENT // PIECE, FORM.parts)
    for part in range(FORM.parts):
        for chunk in range(each + (part < more)):
            piece = part * each + min(part, more) + chunk
            stage = np.zeros(FORM.stage_bytes, np.uint8)
            stage[: steps * PIECE_BYTES] = _box(w, EXPERT, steps, piece, PIECE_BYTES)
            scales = _box(s, EXPERT, 2 * groups, piece, PIECE)
            stage[FORM.weight_bytes :][: len(scales)] = scales
            for tile in range(4):
                mine, total = (tile + LANE // 8) % 4, np.zeros((32, 4))
                for k in range(2 * groups):
                    words_at = 16 * k + (LANE % 4 * 4)[:, None] + np.arange(4)
                    right = inbox[(LANE // 4)[:, None], words_at]
                    matrix = LANE * 16 + mine * 4 + 2 * k * PIECE_BYTES
                    words = [_words(stage, matrix + i * PIECE_BYTES) for i in range(2)]
                    at = FORM.weight_bytes + k * PIECE + LANE // 4 * 8 + mine * 2
                    total += _group(words, right, stage[at[:, None] + np.arange(2)])
                for i in range(4):
                    output = piece * PIECE + 16 * mine + LANE // 4 + 8 * (i // 2)
                    made[2 * (LANE % 4) + i % 2, output] = total[:, i]
    return made


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = {
        "w13": (2 * INTER, LATENT // 2), "s13": (2 * INTER, LATENT // GROUP),
        "w2": (LATENT, INTER // 2), "s2": (LATENT, INTER // GROUP),
    }  # fmt: skip
    return {
        name: torch.randint(
            *((120, 124) if name.startswith("s") else (0, 256)), (EXPERTS, *shape),
            generator=random, dtype=torch.uint8,
        )
        for name, shape in shapes.items()
    }  # fmt: skip


def test_every_byte_is_read_for_the_output_it_belongs_to(weights: dict[str, torch.Tensor]) -> None:
    z = np.random.default_rng(0).integers(-4, 5, (COLUMNS, LATENT)).astype(np.float64)
    w13, w2 = (dequantised(weights[w][EXPERT], weights[s][EXPERT], torch.float64).numpy()
               for w, s in (("w13", "s13"), ("w2", "s2")))  # fmt: skip
    wanted = _joined(*np.split(w13 @ z.T, 2))
    inbox = _hidden(
        repacked(weights["w13"]).view(EXPERTS * LATENT // STEP, -1).numpy(),
        repacked_scales(weights["s13"]).view(EXPERTS * LATENT // GROUP, -1).numpy(), z,
    )  # fmt: skip
    # Word 4 t + c of 16: columns 8 c + 2 t and the next, a lane's right operands side by side.
    order = inbox.reshape(COLUMNS, -1, 4, 4, 2).transpose(0, 1, 3, 2, 4).reshape(COLUMNS, INTER)
    assert np.array_equal(order, wanted.T)
    found = _outputs(
        repacked(weights["w2"]).view(EXPERTS * INTER // STEP, -1).numpy(),
        repacked_scales(weights["s2"]).view(EXPERTS * INTER // GROUP, -1).numpy(), inbox,
    )  # fmt: skip
    assert np.array_equal(found, wanted.T @ w2.T)
