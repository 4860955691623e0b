"""What the benchmark launches of the expert half of a layer.

Owns: buffers, our launches, the least bytes. All 896 experts of a rank of eight lie in memory,
2 GB, and every launch takes tokens to others, so weights are cold. Exchanges are looped back,
as in `ops.oproj`. There is no line for torch, which has no kernel for MXFP4 experts: vLLM's are
quoted in RESULTS.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.bench.ops import CAPACITY, EPS, HIDDEN, RANKS, Residual, Work, random, sets
from kimi_k3.bench.timing import Call
from kimi_k3.kernels.attn_res.kernel import Site
from kimi_k3.kernels.gpu import Bound
from kimi_k3.kernels.moe import launch
from kimi_k3.kernels.moe.inbox import inbox
from kimi_k3.kernels.moe.launch import EXPERTS, INTER, LATENT, TOP_K
from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.oproj.mailbox import echo
from kimi_k3.kernels.projection.launch import projection

_weights: dict[str, Tensor] = {}


def weights() -> dict[str, Tensor]:
    """Of one layer, made once: any bytes are weights, scales keep results near one."""
    if not _weights:
        shapes = {
            "w13": (EXPERTS, 2 * INTER, LATENT // 2), "s13": (EXPERTS, 2 * INTER, LATENT // 32),
            "w2": (EXPERTS, LATENT, INTER // 2), "s2": (EXPERTS, LATENT, INTER // 32),
        }  # fmt: skip
        for name, shape in shapes.items():
            low, high = (119, 123) if name.startswith("s") else (0, 256)
            _weights[name] = torch.randint(
                low, high, shape, dtype=torch.uint8, device="cuda",
            )  # fmt: skip
    return _weights


def experts(batch: int, summed: bool = True) -> Work:
    """Routed experts of `batch` tokens, uniformly routed, and their sum."""
    kernel, finish = launch.experts(batch), launch.finalize(batch)
    each = kernel.routed.bytes_per_expert
    count = sets(each * TOP_K * batch)
    # One permutation after the other, so that neighbouring launches share as little as can be.
    lots = torch.cat([torch.randperm(EXPERTS) for _ in range(-(-count * batch * TOP_K // EXPERTS))])
    lots = lots[: EXPERTS // TOP_K * TOP_K * (len(lots) // EXPERTS)].view(-1, TOP_K).int()
    if batch > 1:  # independent rows: two may take the same expert
        lots = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(count * batch)]).int()
    z, gains = random(batch, LATENT), torch.full((batch, TOP_K), 1 / TOP_K, device="cuda")
    slots = torch.empty(batch, TOP_K, LATENT, device="cuda")
    y = random(batch, LATENT)
    between = inbox(kernel.routed)
    ours: list[Call] = []
    used = 0
    for number in range(count):
        ids = lots[number * batch : (number + 1) * batch]
        used += len(ids.unique())
        ids = ids.cuda()
        ours.append(
            Bound(kernel, z=z, ids=ids, gains=gains, slots=slots, inbox=between, **weights())
        )
        if summed:
            ours.append(Bound(finish, slots=slots, ids=ids, y=y))
    moved = used / count * each + 2.0 * 2 * batch * LATENT
    return Work("experts" if summed else "experts.alone", batch, moved, 1 + summed, ours, [])


def front(batch: int) -> Work:
    """Router and latent down-projection of one rank, exchange, choice of experts."""
    outputs = (EXPERTS + LATENT) // RANKS
    size = 2.0 * outputs * HIDDEN
    exchange = launch.front_exchange(EXPERTS, LATENT, RANKS, CAPACITY)
    end = echo(exchange)
    publish = launch.publish_front(HIDDEN, EXPERTS, LATENT, batch, exchange)
    choose = launch.route(EXPERTS, LATENT, batch, exchange)
    rows = torch.tensor([batch], dtype=torch.int32, device="cuda")
    ids = torch.zeros(batch, TOP_K, dtype=torch.int32, device="cuda")
    gains = torch.zeros(batch, TOP_K, device="cuda")
    ours: list[Call] = []
    for _ in range(sets(size)):
        ours += [
            Bound(publish, x=random(batch, HIDDEN), w=random(outputs, HIDDEN, scale=HIDDEN**-0.5),
                  peers=end.peers, turn=end.turn),
            Bound(choose, mailbox=end.mailbox, turn=end.turn, rows=rows, ids=ids, gains=gains,
                  bias=random(EXPERTS, dtype=torch.float32), z=random(batch, LATENT)),
        ]  # fmt: skip
    return Work("moe_front", batch, size, 2, ours, [])


class Shared:
    """Shared experts of one rank, in three launches; what they send is looped back."""

    def __init__(self, batch: int) -> None:
        self.width = 6144 // RANKS
        self.exchange = Exchange(RANKS, HIDDEN // RANKS, CAPACITY)
        self.end = echo(self.exchange)
        self.both, self.active = random(batch, 2 * self.width), random(batch, self.width)
        self.x, self.batch = random(batch, HIDDEN), batch

    @property
    def bytes_each(self) -> float:
        """Weights of one layer."""
        return 2.0 * 3 * self.width * HIDDEN

    def ours(self) -> list[Call]:
        """Our launches, with weights of their own."""
        width, batch = self.width, self.batch
        gate_up = random(2 * width, HIDDEN, scale=HIDDEN**-0.5)
        down = random(HIDDEN, width, scale=width**-0.5)
        return [
            Bound(projection(2 * width, HIDDEN, batch), x=self.x, w=gate_up, y=self.both),
            Bound(launch.activate(batch, width), gate_up=self.both, y=self.active),
            Bound(launch.publish_shares(width, batch, self.exchange), x=self.active, w=down,
                  peers=self.end.peers, turn=self.end.turn),
        ]  # fmt: skip


def tail(batch: int, sources: int) -> Work:
    """Shared experts, latent sum over ranks and norm, up-projection of a rank's columns, the sum of
    both, and the next mix site: seven launches."""
    shared, site = Shared(batch), Residual(batch)
    latent, row = Exchange(RANKS, LATENT, CAPACITY), shared.exchange
    sums, rows = echo(latent), echo(row)
    slots = random(batch, TOP_K, LATENT, dtype=torch.float32)
    ids = torch.zeros(batch, TOP_K, dtype=torch.int32, device="cuda")
    gain, normed = random(LATENT, dtype=torch.float32), random(batch, LATENT)
    form = Site(HIDDEN, batch, site.bank.shape[1], sources, "add", False, EPS)
    size = shared.bytes_each + 2.0 * LATENT * HIDDEN / RANKS
    ours: list[Call] = []
    for _ in range(sets(size)):
        ours += [
            *shared.ours(),
            Bound(launch.publish_latent(batch, latent), slots=slots, ids=ids, peers=sums.peers,
                  turn=sums.turn),
            Bound(launch.norm_latent(batch, latent, EPS), mailbox=sums.mailbox, turn=sums.turn,
                  gain=gain, y=normed),
            Bound(launch.publish_row(LATENT, batch, row), x=normed, peers=rows.peers,
                  w=random(HIDDEN // RANKS, LATENT, scale=LATENT**-0.5), turn=rows.turn,
                  shares=shared.end.mailbox, shares_turn=shared.end.turn),
            Bound(launch.collect_row(form, row), prefix=site.prefix, bank=site.bank, y=site.y,
                  score=site.score, gain=site.gain, mailbox=rows.mailbox, turn=rows.turn),
        ]  # fmt: skip
    moved = size + 4.0 * batch * TOP_K * LATENT + 2.0 * batch * HIDDEN * (sources + 4)
    return Work("moe_tail", batch, moved, 7, ours, [])
