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
from kimi_k3.kernels.moe.mxfp4 import repacked, repacked_scales
from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.oproj.mailbox import echo

SHARED = 6144 // RANKS
"""Numbers of the shared experts on one rank."""
_weights: dict[str, Tensor] = {}
_repacked: dict[str, Tensor] = {}


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


def weights_repacked() -> dict[str, Tensor]:
    """The same as vLLM's back end has them."""
    if not _repacked:
        for name, one in weights().items():
            _repacked[name] = (repacked_scales if name.startswith("s") else repacked)(one)
    return _repacked


def experts(batch: int, summed: bool = True, in_place: bool = False) -> Work:
    """Routed experts of `batch` tokens, uniformly routed, and their sum; `in_place`: read where
    vLLM's back end has them."""
    kernel = launch.repacked_experts(batch) if in_place else launch.experts(batch)
    finish, held = launch.finalize(batch), weights_repacked() if in_place else weights()
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
        ours.append(Bound(kernel, z=z, ids=ids, gains=gains, slots=slots, inbox=between, **held))
        if summed:
            ours.append(Bound(finish, slots=slots, ids=ids, y=y))
    moved = used / count * each + 2.0 * 2 * batch * LATENT
    name = "experts" + ".in_place" * in_place + ".alone" * (not summed)
    return Work(name, batch, moved, 1 + summed, ours, [])


def front(batch: int) -> Work:
    """Router, latent down-projection and the shared experts' first maps of one rank, exchange,
    choice of experts, activation."""
    chain = Front(batch, random(batch, HIDDEN))
    count = sets(chain.bytes_each)
    ours = [call for _ in range(count) for call in chain.ours()]
    return Work("moe_front", batch, chain.bytes_each, 2, ours, [])


class Front:
    """What leads into the experts, of layers that share their buffers."""

    outputs = (EXPERTS + LATENT) // RANKS + 2 * SHARED
    bytes_each = 2.0 * outputs * HIDDEN

    def __init__(self, batch: int, x: Tensor) -> None:
        self.exchange = launch.front_exchange(EXPERTS, LATENT, RANKS, CAPACITY)
        self.end, self.x = echo(self.exchange), x
        self.both, self.active = random(batch, 2 * SHARED), random(batch, SHARED)
        self.rows = torch.tensor([batch], dtype=torch.int32, device="cuda")
        self.ids = torch.zeros(batch, TOP_K, dtype=torch.int32, device="cuda")
        self.gains = torch.zeros(batch, TOP_K, device="cuda")
        self.z = random(batch, LATENT)

    def ours(self) -> list[Call]:
        """One layer's launches."""
        batch, end = len(self.x), self.end
        shape = EXPERTS, LATENT, batch, self.exchange
        publish = launch.publish_front(HIDDEN, *shape, shared=SHARED)
        return [
            Bound(publish, x=self.x, w=random(self.outputs, HIDDEN, scale=HIDDEN**-0.5),
                  peers=end.peers, turn=end.turn, gate_up=self.both),
            Bound(launch.route(*shape, shared=SHARED), mailbox=end.mailbox, turn=end.turn,
                  bias=random(EXPERTS, dtype=torch.float32), rows=self.rows, ids=self.ids,
                  gains=self.gains, z=self.z, gate_up=self.both, active=self.active),
        ]  # fmt: skip


class Tail:
    """What leads from the experts to the next mix site, of layers that share their buffers."""

    bytes_each = 2.0 * (HIDDEN * SHARED + LATENT * HIDDEN // RANKS)

    def __init__(self, batch: int, sources: int, site: Residual, active: Tensor) -> None:
        self.latent = Exchange(RANKS, LATENT, CAPACITY)
        self.row = Exchange(RANKS, HIDDEN // RANKS, CAPACITY)
        self.sums, self.shares, self.rows = (echo(one) for one in (self.latent, self.row, self.row))
        self.site, self.active = site, active
        self.slots = random(batch, TOP_K, LATENT, dtype=torch.float32)
        self.ids = torch.zeros(batch, TOP_K, dtype=torch.int32, device="cuda")
        self.normed = random(batch, LATENT)
        self.form = Site(HIDDEN, batch, site.bank.shape[1], sources, "add", False, EPS)

    def shared(self) -> Call:
        """Down-projection of the shared experts, its shares to who owns the columns."""
        kernel = launch.publish_shares(SHARED, len(self.active), self.row)
        return Bound(kernel, x=self.active, w=random(HIDDEN, SHARED, scale=SHARED**-0.5),
                     peers=self.shares.peers, turn=self.shares.turn)  # fmt: skip

    def ours(self) -> list[Call]:
        """The others: latent sum and norm, up-projection, mix site."""
        batch, site, rows = len(self.slots), self.site, self.rows
        return [
            Bound(launch.publish_latent(batch, self.latent), slots=self.slots, ids=self.ids,
                  peers=self.sums.peers, turn=self.sums.turn),
            Bound(launch.norm_latent(batch, self.latent, EPS), mailbox=self.sums.mailbox,
                  turn=self.sums.turn, gain=random(LATENT, dtype=torch.float32), y=self.normed),
            Bound(launch.publish_row(LATENT, batch, self.row), x=self.normed, peers=rows.peers,
                  w=random(HIDDEN // RANKS, LATENT, scale=LATENT**-0.5), turn=rows.turn,
                  shares=self.shares.mailbox, shares_turn=self.shares.turn),
            Bound(launch.collect_row(self.form, self.row), prefix=site.prefix, bank=site.bank,
                  y=site.y, score=site.score, gain=site.gain, mailbox=rows.mailbox,
                  turn=rows.turn),
        ]  # fmt: skip


def tail(batch: int, sources: int) -> Work:
    """Shared experts' down-projection, latent sum over ranks and norm, up-projection of a rank's
    columns, the sum of both, and the next mix site: five launches."""
    chain = Tail(batch, sources, Residual(batch), random(batch, SHARED))
    count = sets(chain.bytes_each)
    ours = [call for _ in range(count) for call in (chain.shared(), *chain.ours())]
    moved = chain.bytes_each + 4.0 * batch * TOP_K * LATENT + 2.0 * batch * HIDDEN * (sources + 4)
    return Work("moe_tail", batch, moved, 5, ours, [])
