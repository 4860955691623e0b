"""Index arithmetic of a step: where tokens go before batched maths can run on them.

Owns: the chunk layout of KDA prefill and the tiles of MLA attention. Does not own: the maths, or
the engine's metadata. Read by: the metadata builders (once per step), the layers (as tensors).
NumPy in, int64 tensors out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CHUNK = 16
"""KDA tokens per chunk. The log decay of a token is at least -5, so within a chunk exp(G_i - G_j)
spans 1 to e^-80: a normal FP32 number even at the far end."""

QUERY_PIECE = 128
"""Longest run of queries of one row in one attention tile: later pieces skip nothing, earlier
ones skip the keys after them."""

TILE_SCORES = 1 << 20
"""Most scores per head in one tile of several pieces: 4 MiB of FP32."""

PADDING_FLOOR = 1 << 14
"""Padded scores per head that cost less than launching another tile."""


@dataclass(frozen=True)
class ChunkLayout:
    """Long rows cut into chunks, chunk-major, longest row first.

    Chunk c of every row that has one lies before chunk c + 1 of any: the sequential scan over
    chunks then works on slices, and rows that end drop off the slices' ends.
    """

    order: Tensor
    """[rows] long rows, longest first; the order of `fresh` and of all states."""
    fresh: Tensor
    """[rows] bool: rows that start from a zero state."""
    active: tuple[int, ...]
    """Rows alive in each chunk step, descending."""
    place: Tensor
    """[tokens] place of each token of theirs among all padded chunk tokens."""
    taps: Tensor
    """[tokens] place of each token in the convolution's input, which is row after row, each with
    its history before it."""
    history: Tensor
    """[rows * looked-back tokens] places of the histories, rows in `order`."""
    tail: Tensor
    """[rows * looked-back tokens] places of the next histories, rows in `order`."""

    @property
    def chunks(self) -> int:
        """Chunks of all rows."""
        return sum(self.active)


def chunk_layout(lengths: np.ndarray, contexts: np.ndarray, history: int) -> ChunkLayout | None:
    """Layout of long rows with `lengths` query tokens out of `contexts`; None for no rows.

    `history`: tokens the short convolution looks back.
    """
    rows, tokens = len(lengths), int(lengths.sum())
    if not rows:
        return None
    chunks = -(-lengths // CHUNK)
    order = np.argsort(-chunks, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(rows)
    active = (chunks[None, :] > np.arange(chunks.max(initial=0))[:, None]).sum(1)
    first_chunk = np.cumsum(active) - active
    starts = np.cumsum(lengths) - lengths
    row = np.repeat(np.arange(rows), lengths)
    within = np.arange(tokens) - starts[row]
    place = (first_chunk[within // CHUNK] + rank[row]) * CHUNK + within % CHUNK
    # In the convolution's input, every row is preceded by its own history.
    begins = (starts + history * np.arange(rows))[order, None]
    back = np.arange(history)
    return ChunkLayout(
        order=torch.from_numpy(order),
        fresh=torch.from_numpy((contexts == lengths)[order]),
        active=tuple(int(n) for n in active),
        place=torch.from_numpy(place),
        taps=torch.from_numpy(np.arange(tokens) + history * (row + 1)),
        history=torch.from_numpy((begins + back).ravel()),
        tail=torch.from_numpy((begins + lengths[order, None] + back).ravel()),
    )


@dataclass(frozen=True)
class AttentionTile:
    """Queries of some rows, padded to one length, over their rows' cached keys."""

    pieces: int
    queries: Tensor | None
    """[pieces * length] token of each query, padding repeats; None: all tokens in order."""
    keys: Tensor
    """[pieces, keys] flat cache rows. Padding repeats the row's last key, a written one: an
    unwritten row may hold NaN, and 0 * NaN is NaN."""
    bias: Tensor | None
    """[pieces, length, keys] FP32, 0 or -inf; None: every query sees every key."""
    keep: Tensor | None
    """Queries that are not padding; None: all."""


def attention_tiles(
    bounds: np.ndarray, contexts: np.ndarray, table: np.ndarray, block: int
) -> tuple[AttentionTile, ...]:
    """Tiles that cover every query token of a step once.

    `bounds` [requests + 1] query token offsets, `contexts` [requests] tokens including this
    step's, `table` [requests, pages] of `block` cache rows. A step of one-token rows is one tile.
    """
    lengths = bounds[1:] - bounds[:-1]
    if lengths.max(initial=0) == 1 and _worth_one_tile(lengths, contexts):
        single = np.arange(len(lengths))
        return (_tile(single, bounds[:-1], lengths, contexts, table, block, whole=True),)
    cuts = -(-lengths // QUERY_PIECE)
    row = np.repeat(np.arange(len(lengths)), cuts)
    first = (np.arange(len(row)) - np.repeat(np.cumsum(cuts) - cuts, cuts)) * QUERY_PIECE
    count = np.minimum(lengths[row] - first, QUERY_PIECE)
    context = contexts[row] - lengths[row] + first + count
    tiles: list[list[int]] = []
    group: list[int] = []
    for piece in np.lexsort((context, count)):
        if group and not _worth_one_tile(count[[*group, piece]], context[[*group, piece]]):
            tiles.append(group)
            group = []
        group.append(piece)
    if group:
        tiles.append(group)
    return tuple(
        _tile(row[g], bounds[row[g]] + first[g], count[g], context[g], table, block, whole=False)
        for g in tiles
    )


def _worth_one_tile(counts: np.ndarray, contexts: np.ndarray) -> bool:
    padded = len(counts) * int(counts.max()) * int(contexts.max())
    useful = int((counts * contexts).sum())
    return padded <= TILE_SCORES and padded <= 2 * useful + PADDING_FLOOR


def _tile(
    row: np.ndarray,
    token: np.ndarray,
    count: np.ndarray,
    context: np.ndarray,
    table: np.ndarray,
    block: int,
    whole: bool,
) -> AttentionTile:
    length, width = int(count.max()), int(context.max())
    key = np.minimum(np.arange(width)[None, :], context[:, None] - 1)
    keys = table[row[:, None], key // block].astype(np.int64) * block + key % block
    step = np.arange(length)[None, :]
    real = step < count[:, None]
    # Padding queries repeat the piece's first one; their results are dropped.
    step = np.where(real, step, 0)
    position = (context - count)[:, None] + step
    bias = None
    if length > 1 or (context != width).any():
        seen = np.arange(width)[None, None, :] <= position[:, :, None]
        bias = torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))
    return AttentionTile(
        pieces=len(row),
        queries=None if whole else torch.from_numpy((token[:, None] + step).ravel()),
        keys=torch.from_numpy(keys),
        bias=bias,
        keep=None if real.all() else torch.from_numpy(np.flatnonzero(real.ravel())),
    )
