"""What the benchmark launches: each op of the attention half of a KDA layer, and the whole half.

Owns: buffers that rotate through more memory than L2 holds, our launches and torch's for the same
work, the least bytes. Shapes are those of one rank of eight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kimi_k3.bench.timing import COLD_BYTES, Call
from kimi_k3.kernels.attn_res.kernel import AttnRes, Delta, Site
from kimi_k3.kernels.gpu import Bound
from kimi_k3.kernels.kda.form import pitch
from kimi_k3.kernels.kda.launch import kda
from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.oproj.launch import collect, publish
from kimi_k3.kernels.oproj.mailbox import echo
from kimi_k3.kernels.projection.launch import projection

HIDDEN, BLOCKS, HEADS, WIDTH, EPS, BOUND = 7168, 8, 12, 128, 1e-5, -5.0
WIDE = HEADS * WIDTH
MAPS = {
    "kda_in": (pitch(HEADS), HIDDEN),
    "mla_in": (3648, HIDDEN),
    "q_b": (2304, 1536),
    "out": (HIDDEN, WIDE),
}
"""Packed maps: outputs, inputs."""
MOST_SETS = 64
RANKS, CAPACITY = 8, 64


class Work(NamedTuple):
    """One op, as often as there are sets of buffers."""

    name: str
    batch: int
    bytes_moved: float
    """Of one op: weights and states once."""
    launches: float
    """Of one op, ours; of several layers, their mean."""
    ours: list[Call]
    torch: list[Call]
    times: int = 0
    """How often the op is in `ours`; 0 where every call is a launch."""


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, device="cuda")).to(dtype)


def sets(bytes_each: float) -> int:
    return max(3, min(MOST_SETS, -(-COLD_BYTES // int(bytes_each))))


# ---- one op ----------------------------------------------------------------------------------


def linear(name: str, batch: int) -> Work:
    """A packed map; torch's is cuBLAS."""
    outputs, inputs = MAPS[name]
    size = 2.0 * outputs * inputs
    ours: list[Call] = []
    theirs: list[Call] = []
    kernel = projection(outputs, inputs, batch)
    for _ in range(sets(size)):
        x, w = random(batch, inputs), random(outputs, inputs, scale=inputs**-0.5)
        y = x.new_empty(batch, outputs)
        ours.append(Bound(kernel, x=x, w=w, y=y))
        theirs.append(lambda x=x, w=w, y=y: torch.mm(x, w.t(), out=y))  # type: ignore[misc]
    return Work(name, batch, size, 1, ours, theirs)


class Residual:
    """Prefix and bank of one batch, and a mix site on them."""

    def __init__(self, batch: int) -> None:
        self.prefix, self.delta = random(batch, HIDDEN), random(batch, HIDDEN)
        self.bank = random(batch, BLOCKS, HIDDEN)
        self.score = random(HIDDEN, dtype=torch.float32, scale=HIDDEN**-0.5)
        self.gain = random(HIDDEN, dtype=torch.float32)
        self.y = torch.empty_like(self.prefix)
        self.end = echo(Exchange(RANKS, HIDDEN, CAPACITY))

    def exchanged(self, sources: int, w: Tensor, x: Tensor) -> list[Call]:
        """Output projection, sum over ranks and mix site; this rank stands for all eight."""
        end, batch = self.end, x.shape[0]
        site = Site(HIDDEN, batch, BLOCKS, sources, "add", False, EPS)
        send = Bound(publish(WIDE, batch, end.exchange), x=x, w=w, peers=end.peers, turn=end.turn)
        take = Bound(collect(site, end.exchange), prefix=self.prefix, bank=self.bank, y=self.y,
                     score=self.score, gain=self.gain, mailbox=end.mailbox,
                     turn=end.turn)  # fmt: skip
        return [send, take]

    def ours(self, sources: int, delta: Delta) -> Call:
        """Our launch."""
        batch = self.prefix.shape[0]
        site = Site(HIDDEN, batch, BLOCKS, sources, delta, False, EPS)
        return Bound(AttnRes(site), prefix=self.prefix, delta=self.delta, bank=self.bank,
                     score=self.score, gain=self.gain, y=self.y)  # fmt: skip

    def torch(self, sources: int) -> Call:
        """The same by torch.compile."""
        return lambda: _site(self.prefix, self.delta, self.bank, self.score, self.gain,
                             self.y, sources)  # fmt: skip


@torch.compile(dynamic=False)
def _site(
    prefix: Tensor, delta: Tensor, bank: Tensor, score: Tensor, gain: Tensor, y: Tensor,
    sources: int,
) -> None:  # fmt: skip
    prefix.copy_(prefix.float() + delta.float())
    stack = torch.cat((bank[:, :sources], prefix[:, None]), dim=1).float()
    scores = (stack * score).sum(-1) * torch.rsqrt(stack.square().mean(-1) + EPS)
    mixed = (torch.softmax(scores, -1)[:, :, None] * stack).sum(1)
    y.copy_(mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + EPS) * gain)


def attn_res(batch: int, sources: int) -> Work:
    """A mix site that adds a delta; torch's is torch.compile's."""
    size = 2.0 * batch * HIDDEN * (sources + 4)
    sites = [Residual(batch) for _ in range(MOST_SETS)]
    return Work(
        f"attn_res.{sources}", batch, size, 1,
        [one.ours(sources, "add") for one in sites], [one.torch(sources) for one in sites],
    )  # fmt: skip


class Heads:
    """States and weights of one layer's KDA."""

    def __init__(self, batch: int) -> None:
        slots = batch + 1
        self.fixed: dict[str, Any] = {
            "projected": random(batch, pitch(HEADS)),
            "conv": random(slots, 3, 3 * WIDE),
            "recurrent": random(slots, HEADS, WIDTH, WIDTH, dtype=torch.float32),
            "source": torch.arange(1, slots, dtype=torch.int32, device="cuda"),
            "target": torch.arange(1, slots, dtype=torch.int32, device="cuda")[None],
            "taps": random(4, 3 * WIDE, dtype=torch.float32),
            "decay_up": random(WIDE, WIDTH, scale=WIDTH**-0.5),
            "decay_bias": random(HEADS, WIDTH, dtype=torch.float32),
            "decay_speed": torch.ones(HEADS, device="cuda"),
            "norm": torch.ones(WIDTH, device="cuda"),
            "y": random(batch, WIDE),
        }
        self.batch = batch

    def ours(self) -> Call:
        """Our launch."""
        return Bound(kda(HEADS, self.batch, 1, self.batch + 1, BOUND), **self.fixed)

    def torch(self) -> Call:
        """The same by torch.compile; it knows that slot i + 1 is request i's."""
        names = [n for n in self.fixed if n not in ("source", "target")]
        return lambda: _heads(*(self.fixed[name] for name in names))


@torch.compile(dynamic=False)
def _heads(
    projected: Tensor, conv: Tensor, recurrent: Tensor, taps: Tensor, up: Tensor, bias: Tensor,
    speed: Tensor, norm: Tensor, y: Tensor,
) -> None:  # fmt: skip
    qkv, gate = projected[:, : 3 * WIDE], projected[:, 3 * WIDE : 4 * WIDE]
    low = projected[:, 4 * WIDE : 4 * WIDE + WIDTH]
    beta = torch.sigmoid(projected[:, 4 * WIDE + WIDTH : 4 * WIDE + WIDTH + HEADS].float())
    window = torch.cat((conv[1:], qkv[:, None]), dim=1).float()
    q, k, v = functional.silu((window * taps).sum(1)).view(-1, 3, HEADS, WIDTH).unbind(1)
    conv[1:].copy_(window[:, 1:])
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * WIDTH**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    raw = (low @ up.t()).float().view(-1, HEADS, WIDTH)
    factor = torch.exp(BOUND * torch.sigmoid(speed[:, None] * (raw + bias)))
    faded = recurrent[1:] * factor[:, :, None]
    update = beta[:, :, None] * (v - (faded * k[:, :, None]).sum(-1))
    state = faded + update[..., None] * k[:, :, None]
    recurrent[1:].copy_(state)
    o = (state * q[:, :, None]).sum(-1)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPS) * norm
    y.copy_((o * torch.sigmoid(gate.float().view_as(o))).flatten(1))


def state_bytes(batch: int) -> float:
    return batch * (2.0 * 4 * WIDE * WIDTH + 2.0 * 2 * 3 * 3 * WIDE) + 2.0 * WIDE * WIDTH


def heads(batch: int) -> Work:
    """A KDA core; torch's is torch.compile's, with cuBLAS for the decay gate."""
    layers = [Heads(batch) for _ in range(min(MOST_SETS, sets(state_bytes(batch))))]
    return Work(
        "kda", batch, state_bytes(batch), 1,
        [one.ours() for one in layers], [one.torch() for one in layers],
    )  # fmt: skip


# ---- the attention half of a KDA layer ---------------------------------------------------------


def oproj(batch: int, sources: int) -> Work:
    """Output projection, exchange of eight ranks in loop-back, mix site; torch's exchanges
    nothing."""
    size = 2.0 * HIDDEN * WIDE
    site = Residual(batch)
    ours: list[Call] = []
    theirs: list[Call] = []
    for _ in range(sets(size)):
        x, w = random(batch, WIDE), random(HIDDEN, WIDE, scale=WIDE**-0.5)
        ours += site.exchanged(sources, w, x)
        theirs += [
            lambda x=x, w=w: torch.mm(x, w.t(), out=site.delta),  # type: ignore[misc]
            site.torch(sources),
        ]
    moved = size + 2.0 * batch * HIDDEN * (sources + 3 + 2 * RANKS)
    return Work("oproj", batch, moved, 2, ours, theirs)


def half(batch: int, sources: int, exchange: bool = True) -> Work:
    """Mix site, input projection, KDA, output projection, mix site; layer behind layer.

    With `exchange`, the sum over eight ranks between the last two is there, in loop-back; torch's
    chain never has it.
    """
    (outputs, _), size = MAPS["kda_in"], 2.0 * HIDDEN * (pitch(HEADS) + WIDE)
    site = Residual(batch)
    first, second = projection(outputs, HIDDEN, batch), projection(HIDDEN, WIDE, batch)
    ours: list[Call] = []
    theirs: list[Call] = []
    for _ in range(sets(size)):
        layer = Heads(batch)
        w_in = random(outputs, HIDDEN, scale=HIDDEN**-0.5)
        w_out = random(HIDDEN, WIDE, scale=WIDE**-0.5)
        projected, out = layer.fixed["projected"], layer.fixed["y"]
        mix = site.ours(sources, "add")
        ours += [mix, Bound(first, x=site.y, w=w_in, y=projected), layer.ours()]
        if exchange:
            ours += site.exchanged(sources, w_out, out)
        else:
            ours += [Bound(second, x=out, w=w_out, y=site.delta), mix]
        products: list[Callable[[], object]] = [
            lambda w=w_in, y=projected: torch.mm(site.y, w.t(), out=y),  # type: ignore[misc]
            lambda w=w_out, x=out: torch.mm(x, w.t(), out=site.delta),  # type: ignore[misc]
        ]
        mixed = site.torch(sources)
        theirs += [mixed, products[0], layer.torch(), products[1], mixed]
    moved = size + state_bytes(batch) + 2 * 2.0 * batch * HIDDEN * (sources + 4)
    return Work("half" if exchange else "half.alone", batch, moved, 5, ours, theirs)
