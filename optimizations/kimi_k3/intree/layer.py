"""What one layer of vLLM's Kimi K3 launches when parts of it are ours.

Owns: the parts that can be ours, each with the same inputs and outputs as vLLM's, so that any mix
of both makes a layer. Does not own: which parts are (`plan`), the order of layers (`decode`),
device code (`kernels`). Weights are vLLM's own tensors, read where they lie, but for small vectors
in another number format and, unless they are read in place, the experts (`experts`).

B rows, D hidden. Called while a graph is captured: every launch binds the addresses of then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kimi_k3.intree import experts as routed
from kimi_k3.intree.ranks import CAPACITY, Ranks
from kimi_k3.kernels.attn_res.kernel import AttnRes, Delta, Site
from kimi_k3.kernels.gpu import Bound, Kernel
from kimi_k3.kernels.kda import launch as kda
from kimi_k3.kernels.kda.form import TAPS, WIDTH, pitch
from kimi_k3.kernels.mla import form as latent
from kimi_k3.kernels.mla import launch as mla
from kimi_k3.kernels.moe import launch as moe
from kimi_k3.kernels.moe.form import Routed
from kimi_k3.kernels.moe.inbox import inbox
from kimi_k3.kernels.oproj import launch as oproj
from kimi_k3.kernels.oproj.mailbox import End, loop_back
from kimi_k3.kernels.projection.launch import projection


def run(kernel: Kernel, **tensors: Tensor) -> None:
    """Bind and launch once, which is what a captured graph repeats."""
    # A parameter may ask for gradients, and then it cannot be handed over.
    Bound(kernel, **{name: tensor.detach() for name, tensor in tensors.items()})()


def linear(x: Tensor, w: Tensor) -> Tensor:
    """x [B, K], w [N, K] BF16 -> [B, N]."""
    y = x.new_empty(len(x), len(w))
    run(projection(len(w), x.shape[1], len(x)), x=x, w=w, y=y)
    return y


class Shared:
    """What all layers share: memory that a launch leaves as it found it, a side stream, and the
    other ranks."""

    def __init__(
        self, experts: int, latent: int, device: torch.device, ranks: Ranks | None = None
    ) -> None:
        self.experts, self.latent, self.device = experts, latent, device
        self.ranks = ranks or Ranks(1)
        exchange = moe.front_exchange(experts, latent, 1, CAPACITY)
        self.front: End = loop_back(exchange, str(device))[0]
        self.side = torch.cuda.Stream(device)
        self.events = torch.cuda.Event(), torch.cuda.Event()
        self._inboxes: dict[tuple[int, ...], Tensor] = {}

    def both(
        self, first: Callable[[], Tensor], second: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """What both make, `second` on the side stream. The next launch must be a plain one, as
        torch's own are: it waits for both ends before it begins."""
        fork, join = self.events
        fork.record()
        made = first()
        with torch.cuda.stream(self.side):
            fork.wait()
            other = second()
            join.record()
        join.wait()
        return made, other

    def inbox(self, form: Routed) -> Tensor:
        """Memory of the experts' blocks, made before a graph is captured."""
        if form.inbox not in self._inboxes:
            self._inboxes[form.inbox] = inbox(form, str(self.device))
        return self._inboxes[form.inbox]


class MixSite:
    """A mix site: prefix [B, D] takes delta, the mixture of stored blocks comes out normalised."""

    def __init__(
        self, norm: Any, proj: Any, out_norm: Any, blocks: int, sources: int, delta: Delta,
        write: bool,
    ) -> None:  # fmt: skip
        """`norm`, `proj`, `out_norm`: vLLM's modules of the site and of the norm behind it."""
        if norm.variance_epsilon != out_norm.variance_epsilon:
            raise ValueError("a mix site and the norm behind it must have the same epsilon")
        self.score = norm.weight.data.float() * proj.weight.data.float().view(-1)
        self.gain = out_norm.weight.data.float()
        self.eps = norm.variance_epsilon
        self.blocks, self.sources, self.delta, self.write = blocks, sources, delta, write

    def __call__(self, prefix: Tensor, delta: Tensor | None, bank: Tensor, early: bool) -> Tensor:
        """bank [B, N, D]; without a delta there is none to read, and the prefix stands in. `early`:
        whether all kernels behind are ours, which may begin before this one ends."""
        y = torch.empty_like(prefix)
        run(AttnRes(self._site(prefix, early)), prefix=prefix,
            delta=prefix if delta is None else delta, bank=bank, score=self.score, gain=self.gain,
            y=y)  # fmt: skip
        return y

    def collect(
        self, prefix: Tensor, end: End, bank: Tensor, early: bool, columns: bool = False
    ) -> Tensor:
        """The same with the ranks' shares in `end` for a delta, or their finished `columns`."""
        y, site = torch.empty_like(prefix), self._site(prefix, early)
        kernel = (moe.collect_row if columns else oproj.collect)(site, end.exchange)
        run(kernel, prefix=prefix, mailbox=end.mailbox, turn=end.turn, bank=bank, score=self.score,
            gain=self.gain, y=y)  # fmt: skip
        return y

    def _site(self, prefix: Tensor, early: bool) -> Site:
        batch, hidden = prefix.shape
        return Site(
            hidden, batch, self.blocks, self.sources, self.delta, self.write, self.eps, early=early
        )


class Half:
    """A layer between its mix sites: a packed projection, attention, the output projection."""

    def __init__(self, attention: Any, into: Tensor) -> None:
        self.attention = attention
        self.into, self.out = into, attention.o_proj.weight.data

    @property
    def extra_bytes(self) -> int:
        """What exists twice."""
        return 0

    def give(self, heads: Tensor) -> Tensor:
        """heads [B, H 128] through the output projection -> this rank's share [B, D]."""
        return linear(heads, self.out)

    def send(self, heads: Tensor, end: End) -> None:
        """The same, to every rank's mailbox."""
        kernel = oproj.publish(heads.shape[1], len(heads), end.exchange)
        run(kernel, x=heads, w=self.out, peers=end.peers, turn=end.turn)


class KdaHalf(Half):
    """A KDA layer. States are read and written in vLLM's pages."""

    def __init__(self, attention: Any) -> None:
        """Raises ValueError for weights in another layout than the one there is code for."""
        super().__init__(attention, attention.in_proj_qkvgfab.weight.data)
        self.heads: int = attention.local_num_heads
        if attention.head_dim != WIDTH or len(self.into) != pitch(self.heads):
            raise ValueError(f"a KDA input projection of {list(self.into.shape)}")
        taps = attention.conv1d.weight.data.float().view(-1, TAPS)
        self.fixed = {
            "taps": taps.t().contiguous(),
            "decay_up": attention.f_b_proj.weight.data,
            "decay_bias": attention.dt_bias.data.view(self.heads, WIDTH),
            "decay_speed": attention.A_log.data.float().exp(),
            "norm": attention.o_norm.weight.data.float(),
        }

    def pools(self) -> tuple[Tensor, Tensor]:
        """conv [slots, 3, 3 H 128] BF16 and recurrent [slots, H, 128, 128] FP32 as vLLM has bound
        them, any distance from slot to slot. Raises ValueError for anything else."""
        conv, recurrent = self.attention.kv_cache[:2]
        wanted = [
            (torch.bfloat16, (TAPS - 1, 3 * self.heads * WIDTH)),
            (torch.float32, (self.heads, WIDTH, WIDTH)),
        ]
        found = [(one.dtype, tuple(one.shape[1:])) for one in (conv, recurrent)]
        if found != wanted or not all(one[0].is_contiguous() for one in (conv, recurrent)):
            raise ValueError(f"KDA states must be {wanted}, got {found}")
        return conv, recurrent

    def attend(self, x: Tensor, where: Tensor) -> Tensor:
        """x [B, D] -> [B, H 128]. `where`: slots int32 [B], 0 for rows without a request."""
        conv, recurrent = self.pools()
        batch = len(x)
        kernel = kda.paged(
            self.heads, batch, self.attention.gate_lower_bound, conv.stride(0), recurrent.stride(0)
        )
        y = x.new_empty(batch, self.heads * WIDTH)
        run(kernel, projected=linear(x, self.into), conv=conv[:1], recurrent=recurrent[:1],
            source=where, target=where[None], y=y, **self.fixed)  # fmt: skip
        return y


class Pages(NamedTuple):
    """Where a step's requests have their latents, as vLLM's metadata says it."""

    slots: Tensor
    """int32 [B]: the cache row each token fills, negative for rows without a request."""
    table: Tensor
    """int32 [B, pages]."""
    seen: Tensor
    """int32 [B]: tokens of the request, the new one included."""

    @classmethod
    def nobodys(cls, batch: int, width: int, device: torch.device) -> Pages:
        """Of rows without requests."""
        ints = {"dtype": torch.int32, "device": device}
        return cls(
            torch.full((batch,), -1, **ints),  # type: ignore[call-overload]
            torch.zeros(batch, width, **ints),  # type: ignore[call-overload]
            torch.zeros(batch, **ints),  # type: ignore[call-overload]
        )


class MlaHalf(Half):
    """An MLA layer: queries and the new cache rows, the core, values and gate. Latents are read and
    written in vLLM's pages."""

    def __init__(self, attention: Any) -> None:
        """Raises ValueError for weights in another layout than the one there is code for."""
        super().__init__(attention, attention.fused_qkv_a_g_proj.weight.data)
        self.heads: int = attention.num_local_heads
        if len(self.into) != latent.pitch(self.heads) or attention.rotary_emb is not None:
            raise ValueError(f"an MLA input projection of {list(self.into.shape)}, or positions")
        self.fixed = {
            "query_norm": attention.q_a_layernorm.weight.data,
            "latent_norm": attention.kv_a_layernorm.weight.data,
            "query_up": attention.q_b_proj.weight.data,
            # vLLM has both for a product over [head, in, out]; 3 MB of a layer once more.
            "key_up": attention.W_UK_T.data.transpose(1, 2).contiguous(),
            "scale": torch.ones(1, device=self.into.device),
        }
        self.value_up = attention.W_UV.data.transpose(1, 2).contiguous()

    @property
    def extra_bytes(self) -> int:
        """What exists twice."""
        return self.fixed["key_up"].nbytes + self.value_up.nbytes

    @staticmethod
    def serves(attention: Any) -> bool:
        """Whether there is code for it: latents in BF16, of one rank each."""
        cached = attention.kv_cache_dtype in ("auto", "bfloat16")
        return cached and attention.dcp_world_size == 1

    def cache(self) -> Tensor:
        """[pages, rows of a page, 576] as vLLM has bound it. Raises ValueError for anything but
        adjacent rows."""
        found: Tensor = self.attention.kv_cache
        if found.dtype != torch.bfloat16 or found.shape[2:] != (latent.ROW,):
            raise ValueError(f"a cache of latents {list(found.shape)}, {found.dtype}")
        if not found.is_contiguous():
            raise ValueError(f"pages of latents apart from each other: strides {found.stride()}")
        return found

    def attend(self, x: Tensor, where: Pages) -> Tensor:
        """x [B, D] -> [B, H 128]."""
        cache, batch, heads = self.cache(), len(x), self.heads
        # Kernels need to know where the first row is; how many there are is no part of the code.
        first = cache.view(-1, latent.ROW)[:1]
        projected = linear(x, self.into)
        query = x.new_empty(batch, heads, latent.ROW)
        kernel = mla.queries(heads, batch, len(first), False, self.attention.rms_norm_eps)
        run(kernel, projected=projected, slot=where.slots, cache=first, query=query,
            **self.fixed)  # fmt: skip
        page, width = cache.shape[1], where.table.shape[1]
        core = mla.core(heads, batch, 1, len(first), page, width, False)
        parts = core.form.splits, batch, heads
        partial = x.new_empty(*parts, latent.LATENT, dtype=torch.float32)
        lse = x.new_empty(parts, dtype=torch.float32)
        run(core, query=query, cache=first, table=where.table, seen=where.seen[None],
            scale=self.fixed["scale"], partial=partial, lse=lse)  # fmt: skip
        y = x.new_empty(batch, heads * latent.VALUE)
        run(mla.values(heads, batch, parts[0]), projected=projected, partial=partial, lse=lse,
            value_up=self.value_up, y=y)  # fmt: skip
        return y


class Chosen(NamedTuple):
    """What leads into the experts of B rows."""

    ids: Tensor
    """int32 [B, K]."""
    gains: Tensor
    """FP32 [B, K]."""
    z: Tensor
    """[B, L]: rows in the latent space."""
    active: Tensor | None
    """[B, S]: shared experts between their two maps, where these are ours."""


class Moe:
    """The latent MoE of a layer. Router, latent down-projection and the shared experts' first map
    of vLLM become views of one matrix, so that one launch reads them and no weight exists twice."""

    def __init__(self, module: Any, weights: routed.Experts, shared: Shared) -> None:
        self.module, self.weights, self.shared = module, weights, shared
        gate, down = module.gate, module.routed_expert_down_proj
        owners = (gate, down, module.shared_experts.gate_up_proj)
        self.into = torch.cat([one.weight.data for one in owners])
        views = self.into.split([len(one.weight) for one in owners])
        for owner, view in zip(owners, views, strict=True):
            owner.weight.data = view
        self.width = len(views[-1]) // 2
        self.bias = gate.e_score_correction_bias.data
        self.norm = module.routed_expert_norm
        self.up = module.routed_expert_up_proj.weight.data
        ranks = shared.ranks
        self.gain = self.norm.weight.data.float() if ranks.boxes else None
        self.share = self.into
        """What this rank multiplies where the ranks share the work."""
        if ranks.boxes and ranks.size > 1:
            self.share = torch.cat((*map(ranks.part, views[:2]), views[2]))

    @property
    def extra_bytes(self) -> int:
        """What exists twice."""
        own = 0 if self.share is self.into else self.share.nbytes
        return own + routed.extra_bytes(self.weights)

    def __call__(self, x: Tensor, rows: Tensor, shared_ours: bool, up_ours: bool) -> Tensor:
        """x [B, D], rows int32 [1], how many of B have a request -> [B, D], summed over ranks."""
        ranks, experts = self.shared.ranks, self.module.shared_experts

        def up(latent: Tensor) -> Tensor:
            normed = self.norm(latent)
            return linear(normed, self.up) if up_ours else torch.mm(normed, self.up.t())

        def behind(latent: Tensor) -> Tensor:
            return up(latent) if ranks.size == 1 else latent

        if shared_ours:
            # Ahead of the fork: both sides go on with what it makes.
            chosen = self.choose(x, rows, shared=True)
            made, other = self.shared.both(
                lambda: behind(self.summed(chosen)),
                lambda: linear(cast(Tensor, chosen.active), experts.down_proj.weight),
            )
        else:
            made, other = self.shared.both(lambda: behind(self.routed(x, rows)), lambda: experts(x))
        if ranks.size == 1:
            return other.add_(made)
        latent, other = ranks.totals(made, other)
        return other.add_(up(latent))

    def routed(self, x: Tensor, rows: Tensor) -> Tensor:
        """This rank's share of the routed experts' sum [B, L], before its norm."""
        return self.summed(self.choose(x, rows, shared=False))

    def send(self, x: Tensor, rows: Tensor) -> None:
        """The same as a call, shared with the other ranks, and the result in their mailboxes: the
        next mix site takes it. The shared experts' second map comes first, so that its weights
        arrive while experts are chosen."""
        boxes, experts, batch = self.shared.ranks.boxes, self.module.shared_experts, len(x)
        assert boxes is not None and self.gain is not None
        chosen = self._choose(x, rows, boxes.front, self.share, self.width)
        kernel = moe.publish_shares(self.width, batch, boxes.shares.exchange)
        run(kernel, x=cast(Tensor, chosen.active), w=experts.down_proj.weight,
            peers=boxes.shares.peers, turn=boxes.shares.turn)  # fmt: skip
        slots, y = self._slots(chosen), torch.empty_like(chosen.z)
        run(moe.publish_latent(batch, boxes.latent.exchange, self.shared.experts), slots=slots,
            ids=chosen.ids, peers=boxes.latent.peers, turn=boxes.latent.turn)  # fmt: skip
        norm = moe.norm_latent(batch, boxes.latent.exchange, self.norm.variance_epsilon)
        run(norm, mailbox=boxes.latent.mailbox, turn=boxes.latent.turn, gain=self.gain, y=y)
        up = self.shared.ranks.part(self.up)
        run(moe.publish_row(y.shape[1], batch, boxes.columns.exchange), x=y, w=up,
            peers=boxes.columns.peers, turn=boxes.columns.turn, shares=boxes.shares.mailbox,
            shares_turn=boxes.shares.turn)  # fmt: skip

    def choose(self, x: Tensor, rows: Tensor, shared: bool) -> Chosen:
        """Router, latent down-projection and choice; `shared`: and the shared experts' first map
        and what is between it and their second."""
        width = self.width if shared else 0
        weights = self.into[: len(self.into) - 2 * (self.width - width)]
        return self._choose(x, rows, self.shared.front, weights, width)

    def _choose(self, x: Tensor, rows: Tensor, end: End, weights: Tensor, width: int) -> Chosen:
        batch = len(x)
        shape = self.shared.experts, self.shared.latent, batch, end.exchange
        ids = rows.new_empty(batch, moe.TOP_K)
        found = Chosen(
            ids,
            torch.empty_like(ids, dtype=torch.float32),
            x.new_empty(batch, self.shared.latent),
            x.new_empty(batch, width) if width else None,
        )
        both: dict[str, Tensor] = {"gate_up": x.new_empty(batch, 2 * width)} if width else {}
        front = moe.publish_front(x.shape[1], *shape, shared=width)
        run(front, x=x, w=weights, peers=end.peers, turn=end.turn, **both)
        if found.active is not None:
            both["active"] = found.active
        run(moe.route(*shape, shared=width), mailbox=end.mailbox, turn=end.turn, bias=self.bias,
            rows=rows, ids=ids, gains=found.gains, z=found.z, **both)  # fmt: skip
        return found

    def summed(self, chosen: Chosen) -> Tensor:
        """The chosen experts' sum [B, L]."""
        slots, y = self._slots(chosen), torch.empty_like(chosen.z)
        run(moe.finalize(len(y), self.shared.experts), slots=slots, ids=chosen.ids, y=y)
        return y

    def _slots(self, chosen: Chosen) -> Tensor:
        """The chosen experts' outputs [B, K, L]."""
        ids, gains, z, _ = chosen
        slots = gains.new_empty(len(z), moe.TOP_K, z.shape[1])
        kernel, form = routed.kernel(self.weights, len(z))
        run(kernel, z=z, ids=ids, gains=gains, slots=slots, inbox=self.shared.inbox(form),
            **self.weights._asdict())  # fmt: skip
        return slots
