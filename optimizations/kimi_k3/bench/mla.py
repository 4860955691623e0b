"""What the benchmark launches of an MLA layer: its kernels at several contexts, and the whole half.

Owns: buffers that rotate through more memory than L2 holds, our launches and torch's for the same
work, the least bytes. Shapes are those of one rank of eight; every request has the same context.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kimi_k3.bench.ops import EPS, HEADS, HIDDEN, MAPS, MOST_SETS, Residual, Work, random, sets
from kimi_k3.bench.timing import Call
from kimi_k3.kernels.gpu import Bound
from kimi_k3.kernels.mla import launch
from kimi_k3.kernels.mla.form import HEAD, LATENT, NOPE, QUERY, ROW, VALUE, splits
from kimi_k3.kernels.prefetch.kernel import Prefetch, Range
from kimi_k3.kernels.projection.launch import projection

CONTEXTS = (1024, 4096, 32768)
PAGE = 64
PREFETCHING = 8
"""Blocks of a prefetch."""
WEIGHTS = 2.0 * HEADS * (HEAD * QUERY + LATENT * (NOPE + VALUE))
"""Bytes of query and key up-projection and of the value projection."""


class Layer:
    """Weights, cache and buffers of one layer; `context` 0 for no cache but a few rows."""

    def __init__(self, batch: int, context: int = 0, fp8: bool = False) -> None:
        self.batch, self.context, self.fp8 = batch, max(context, PAGE), fp8
        self.width = -(-self.context // PAGE)
        pages = batch * self.width
        cache = torch.empty(pages * PAGE, ROW, device="cuda", dtype=torch.bfloat16).normal_()
        self.cache = cache.to(torch.float8_e4m3fn).view(torch.uint8) if fp8 else cache
        self.table = torch.randperm(pages, device="cuda").int().view(batch, self.width)
        last = self.context - 1
        self.slot = self.table[:, last // PAGE] * PAGE + last % PAGE
        self.seen = torch.full((1, batch), self.context, dtype=torch.int32, device="cuda")
        self.scale = torch.ones(1, device="cuda")
        self.norms = random(QUERY), random(LATENT)
        self.query_up = random(HEADS * HEAD, QUERY, scale=QUERY**-0.5)
        self.key_up = random(HEADS, LATENT, NOPE, scale=NOPE**-0.5)
        self.value_up = random(HEADS, VALUE, LATENT, scale=LATENT**-0.5)
        self.projected = random(batch, MAPS["mla_in"][0])
        self.query = random(batch, HEADS, ROW)
        parts = splits(batch, HEADS)
        self.partial = random(parts, batch, HEADS, LATENT, dtype=torch.float32)
        self.lse = random(parts, batch, HEADS, dtype=torch.float32)
        self.y = random(batch, HEADS * VALUE)

    def ours(self) -> list[Bound]:
        """Our launches: queries, core, values."""
        rows = len(self.cache)
        prepared = launch.queries(HEADS, self.batch, rows, self.fp8, EPS)
        attend = launch.core(HEADS, self.batch, 1, rows, PAGE, self.width, self.fp8)
        finish = launch.values(HEADS, self.batch, len(self.lse))
        return [
            Bound(
                prepared, projected=self.projected, slot=self.slot, query_norm=self.norms[0],
                latent_norm=self.norms[1], query_up=self.query_up, key_up=self.key_up,
                scale=self.scale, cache=self.cache, query=self.query,
            ),
            Bound(
                attend, query=self.query, cache=self.cache, table=self.table, seen=self.seen,
                scale=self.scale, partial=self.partial, lse=self.lse,
            ),
            Bound(
                finish, projected=self.projected, partial=self.partial, lse=self.lse,
                value_up=self.value_up, y=self.y,
            ),
        ]  # fmt: skip

    def torch(self) -> list[Call]:
        """The same: cuBLAS, and torch.compile between; on a cache without pages."""
        return [
            lambda: _query(self.projected, *self.norms, self.query_up, self.key_up, self.slot,
                           self.cache, self.query),
            lambda: _core(self.query, self.cache.view(self.batch, -1, ROW), self.partial),
            lambda: _value(self.partial, self.projected, self.value_up, self.y),
        ]  # fmt: skip


@torch.compile(dynamic=False)
def _query(
    projected: Tensor, gain: Tensor, latent_gain: Tensor, up: Tensor, key_up: Tensor, slot: Tensor,
    cache: Tensor, query: Tensor,
) -> None:  # fmt: skip
    low, latent, shared = projected[:, : QUERY + ROW].split([QUERY, LATENT, ROW - LATENT], -1)
    q = (functional.rms_norm(low, (QUERY,), gain, EPS) @ up.t()).view(-1, HEADS, HEAD)
    absorbed = torch.bmm(q[..., :NOPE].transpose(0, 1), key_up.transpose(1, 2)).transpose(0, 1)
    query.copy_(torch.cat((absorbed, q[..., NOPE:]), -1))
    rows = torch.cat((functional.rms_norm(latent, (LATENT,), latent_gain, EPS), shared), -1)
    if cache.dtype == torch.uint8:
        rows = rows.to(torch.float8_e4m3fn).view(torch.uint8)
    cache[slot] = rows


@torch.compile(dynamic=False)
def _core(query: Tensor, cache: Tensor, partial: Tensor) -> None:
    held = cache.view(torch.float8_e4m3fn).to(query.dtype) if cache.dtype == torch.uint8 else cache
    weights = torch.softmax(torch.bmm(query, held.transpose(1, 2)).float() * HEAD**-0.5, -1)
    partial[0].copy_(torch.bmm(weights.to(held.dtype), held[..., :LATENT]))


@torch.compile(dynamic=False)
def _value(partial: Tensor, projected: Tensor, value_up: Tensor, y: Tensor) -> None:
    o = torch.bmm(partial[0].bfloat16().transpose(0, 1), value_up.transpose(1, 2)).transpose(0, 1)
    y.copy_(o.flatten(1) * torch.sigmoid(projected[:, QUERY + ROW :]))


def query(batch: int) -> Work:
    """Queries and cache rows; torch's is cuBLAS with torch.compile."""
    size = 2.0 * HEADS * (HEAD * QUERY + LATENT * NOPE)
    layers = [Layer(batch) for _ in range(sets(size))]
    return Work("mla_query", batch, size, 1,
                [one.ours()[0] for one in layers], [one.torch()[0] for one in layers])  # fmt: skip


def core(context: int, fp8: bool, batch: int) -> Work:
    """Attention over the cache; torch's is cuBLAS without pages."""
    size = batch * context * ROW * (1.0 if fp8 else 2.0)
    layers = [Layer(batch, context, fp8) for _ in range(sets(size))]
    name = f"mla_core{'_fp8' * fp8}.{context}"
    return Work(name, batch, size, 1,
                [one.ours()[1] for one in layers], [one.torch()[1] for one in layers])  # fmt: skip


def value(batch: int) -> Work:
    """Merge and values; torch's merges nothing."""
    size = 2.0 * HEADS * LATENT * VALUE + 4.0 * splits(batch, HEADS) * batch * HEADS * LATENT
    layers = [Layer(batch) for _ in range(min(MOST_SETS, sets(size)))]
    return Work("mla_value", batch, size, 1,
                [one.ours()[2] for one in layers], [one.torch()[2] for one in layers])  # fmt: skip


class Beside:
    """A prefetch on a stream of its own, behind what the current stream has so far."""

    def __init__(self, w: Tensor, stream: torch.cuda.Stream) -> None:
        self.launch = Bound(Prefetch(Range(w.shape[0], w.shape[1], PREFETCHING)), w=w)
        self.stream = stream

    def __call__(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.launch()


def half(context: int, sources: int, batch: int, fp8: bool = False, ahead: bool = False) -> Work:
    """Mix site, packed projection, queries, core, values, output projection, mix site.
    `ahead`: the output projection's weights are prefetched behind the packed projection.

    One rank alone: the sum over ranks between the projection and the second site is absent.
    """
    (outputs, _), (wide, inputs) = MAPS["mla_in"], MAPS["out"]
    size = WEIGHTS + 2.0 * (outputs * HIDDEN + wide * inputs)
    site, side = Residual(batch), torch.cuda.Stream()
    first, second = projection(outputs, HIDDEN, batch), projection(wide, inputs, batch)
    ours: list[Call] = []
    theirs: list[Call] = []
    for _ in range(sets(size)):
        layer = Layer(batch, context, fp8)
        w_in = random(outputs, HIDDEN, scale=HIDDEN**-0.5)
        w_out = random(wide, inputs, scale=inputs**-0.5)
        mix, mixed = site.ours(sources, "add"), site.torch(sources)
        prepared, attend, finish = layer.ours()
        ours += [
            mix, Bound(first, x=site.y, w=w_in, y=layer.projected),
            *([Beside(w_out, side)] if ahead else []),
            prepared, attend, finish,
            Bound(second, x=layer.y, w=w_out, y=site.delta), mix,
        ]  # fmt: skip
        theirs += [
            mixed,
            lambda w=w_in, y=layer.projected: torch.mm(site.y, w.t(), out=y),  # type: ignore[misc]
            *layer.torch(),
            lambda w=w_out, x=layer.y: torch.mm(x, w.t(), out=site.delta),  # type: ignore[misc]
            mixed,
        ]
    if ahead:
        ours.append(lambda: torch.cuda.current_stream().wait_stream(side))
    cached = batch * context * ROW * (1.0 if fp8 else 2.0)
    moved = size + cached + 2 * 2.0 * batch * HIDDEN * (sources + 4)
    name = f"mla_half{'_fp8' * fp8}{'_ahead' * ahead}.{context}"
    return Work(name, batch, moved, 7 + ahead, ours, theirs)
