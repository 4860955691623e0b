"""Index arithmetic and the chunked recurrence, against the obvious loops.

Protects: every token in exactly one place, no query sees a later key, no padding reaches a result,
the chunked form equals the recurrence at any decay, states can be handed from chunk to chunk.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from kimi_k3.layers.kda_chunk import chunk_scan
from kimi_k3.layers.layout import CHUNK, attention_tiles, chunk_layout

HEADS, WIDTH = 2, 8


def rows(generator: torch.Generator, tokens: int, log_decay: float) -> tuple[Tensor, ...]:
    """Random q, k (unit length), v, log decay down to `log_decay`, beta of one sequence."""

    def normal() -> Tensor:
        return torch.randn(tokens, HEADS, WIDTH, generator=generator)

    q, k = (torch.nn.functional.normalize(normal(), dim=-1) for _ in range(2))
    decay = log_decay * torch.rand(tokens, HEADS, WIDTH, generator=generator)
    return q, k, normal(), decay, torch.rand(tokens, HEADS, generator=generator)


def recurrence(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor]:
    """The delta rule token by token, in FP64."""
    state, outputs = state.double(), []
    for t in range(len(q)):
        state = state * g[t].double().exp().unsqueeze(1)
        missing = v[t].double() - torch.einsum("hvk,hk->hv", state, k[t].double())
        update = beta[t].double().unsqueeze(-1) * missing
        state = state + torch.einsum("hv,hk->hvk", update, k[t].double())
        outputs.append(torch.einsum("hvk,hk->hv", state, q[t].double()))
    return torch.stack(outputs), state


@pytest.mark.parametrize("log_decay", [-1e-4, -1.0, -5.0])
@pytest.mark.parametrize("lengths", [(1,), (16,), (17, 1), (40, 3, 16, 33), (15, 64)])
def test_chunks_equal_the_recurrence(lengths: tuple[int, ...], log_decay: float) -> None:
    generator = torch.Generator().manual_seed(7)
    parts = [rows(generator, length, log_decay) for length in lengths]
    state = torch.randn(len(lengths), HEADS, WIDTH, WIDTH, generator=generator)
    sizes = np.array(lengths)
    layout = chunk_layout(sizes, sizes + 5, history=3)
    assert layout is not None
    merged = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
    out, final = chunk_scan(*merged, state[layout.order], layout)
    expected = [recurrence(state[i], *part) for i, part in enumerate(parts)]
    assert torch.isfinite(out).all()
    torch.testing.assert_close(
        out.double(), torch.cat([one for one, _ in expected]), rtol=1e-4, atol=1e-5
    )
    finals = torch.stack([two for _, two in expected])[layout.order]
    torch.testing.assert_close(final.double(), finals, rtol=1e-4, atol=1e-5)


def test_the_strongest_decay_everywhere_stays_finite() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v, decay, beta = rows(generator, 64, 0.0)
    layout = chunk_layout(np.array([64]), np.array([64]), history=3)
    assert layout is not None
    state = torch.zeros(1, HEADS, WIDTH, WIDTH)
    out, final = chunk_scan(q, k, v, torch.full_like(decay, -5.0), beta, state, layout)
    expected, last = recurrence(state[0], q, k, v, torch.full_like(decay, -5.0), beta)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(final[0].double(), last, rtol=1e-4, atol=1e-6)


def test_nearly_equal_keys_with_full_updates() -> None:
    """The triangular solve is worst conditioned here; a truncated inverse would diverge."""
    generator = torch.Generator().manual_seed(2)
    q, k, v, decay, beta = rows(generator, 48, -1e-3)
    k = torch.nn.functional.normalize(k[:1] + 1e-3 * k, dim=-1)
    layout = chunk_layout(np.array([48]), np.array([48]), history=3)
    assert layout is not None
    state = torch.zeros(1, HEADS, WIDTH, WIDTH)
    out, _ = chunk_scan(q, k, v, decay, torch.ones_like(beta), state, layout)
    expected, _ = recurrence(state[0], q, k, v, decay, torch.ones_like(beta))
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("lengths", [(1,), (5, 40, 16), (33, 33, 2)])
def test_chunk_places(lengths: tuple[int, ...]) -> None:
    sizes = np.array(lengths)
    contexts = sizes + np.array([0, 9, 0][: len(sizes)])
    layout = chunk_layout(sizes, contexts, history=3)
    assert layout is not None
    assert len(set(layout.place.tolist())) == sizes.sum()
    assert max(layout.place.tolist()) < layout.chunks * CHUNK
    assert sorted(layout.order.tolist()) == list(range(len(sizes)))
    assert layout.fresh.tolist() == [bool(contexts[i] == sizes[i]) for i in layout.order]
    # The convolution's input: histories and rows together fill it, and each row's last three
    # places are its next history.
    line = torch.full((int(sizes.sum()) + 3 * len(sizes),), -1)
    line[layout.taps] = torch.arange(int(sizes.sum()))
    line[layout.history] = -2
    assert (line != -1).all()
    ends = torch.from_numpy(np.cumsum(sizes) - 1)[layout.order]
    assert line[layout.tail].view(-1, 3)[:, -1].tolist() == ends.tolist()


def test_no_rows_no_layout() -> None:
    assert chunk_layout(np.array([], dtype=np.int64), np.array([], dtype=np.int64), 3) is None


STEPS = [
    [(1, 5)],
    [(1, 5), (1, 5), (1, 5)],
    [(1, 40), (1, 3), (1, 900)],
    [(7, 7)],
    [(200, 300)],
    [(1, 50), (3, 9), (130, 130), (2, 700), (1, 1)],
    [(1, 4000), *[(1, 2)] * 40],
]


@pytest.mark.parametrize("step", STEPS)
def test_tiles_equal_plain_attention(step: list[tuple[int, int]]) -> None:
    """Rows as (query tokens, tokens including them), pages of 16, unwritten cache rows NaN."""
    generator = torch.Generator().manual_seed(3)
    block, width = 16, 4
    lengths = np.array([length for length, _ in step])
    contexts = np.array([context for _, context in step])
    pages = [-(-context // block) for context in contexts]
    order = torch.randperm(sum(pages), generator=generator).numpy() + 1
    table = np.zeros((len(step), max(pages)), dtype=np.int32)
    cache = torch.full(((sum(pages) + 1) * block, width), float("nan"))
    used = 0
    for row, (context, count) in enumerate(zip(contexts, pages, strict=True)):
        table[row, :count] = order[used : used + count]
        used += count
        places = [table[row, t // block] * block + t % block for t in range(context)]
        cache[places] = torch.randn(context, width, generator=generator)
    query = torch.randn(int(lengths.sum()), width, generator=generator)
    bounds = np.concatenate([[0], np.cumsum(lengths)])

    seen = torch.zeros(len(query), dtype=torch.int64)
    out = torch.full_like(query, float("nan"))
    for tile in attention_tiles(bounds, contexts, table, block):
        places = torch.arange(len(query)) if tile.queries is None else tile.queries
        keys = cache[tile.keys]
        scores = torch.bmm(query[places].view(tile.pieces, -1, width), keys.transpose(1, 2))
        if tile.bias is not None:
            scores += tile.bias
        result = torch.bmm(scores.softmax(-1), keys).flatten(0, 1)
        if tile.keep is not None:
            result, places = result[tile.keep], places[tile.keep]
        out[places] = result
        seen[places] += 1
    assert (seen == 1).all()

    for row, (length, context) in enumerate(step):
        places = [table[row, t // block] * block + t % block for t in range(context)]
        keys = cache[places]
        for i in range(length):
            upto = keys[: context - length + i + 1]
            token = bounds[row] + i
            expected = (query[token] @ upto.t()).softmax(-1) @ upto
            torch.testing.assert_close(out[token], expected, rtol=1e-4, atol=1e-5)


def test_a_decode_step_of_similar_rows_is_one_tile_without_gathering() -> None:
    (tile,) = attention_tiles(
        np.arange(5), np.array([30, 31, 40, 33]), np.ones((4, 3), dtype=np.int32), 16
    )
    assert tile.queries is None
    assert tile.keys.shape == (4, 40)


def test_one_long_row_does_not_pad_many_short_ones() -> None:
    contexts = np.array([4000] + [2] * 40)
    tiles = attention_tiles(np.arange(42), contexts, np.zeros((41, 250), dtype=np.int32), 16)
    assert sum(tile.keys.numel() for tile in tiles) < 3 * contexts.sum()
