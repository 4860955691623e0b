"""Case `moe_tail`: from the experts' slots and the shared experts back to the residual stream, on a
GPU.

Owns: inputs, truth, stock arithmetic and candidate. Read by: the harness. One GPU plays all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kimi_k3.cases.gpu import common
from kimi_k3.cases.gpu.common import (
    BATCHES,
    EPS,
    HIDDEN,
    NAN,
    GpuCase,
    Programs,
    Regime,
    Tensors,
    in_turn,
    late,
)
from kimi_k3.kernels.common import rms_norm
from kimi_k3.reference import attn_res

LATENT, TOP_K, EXPERTS, CAPACITY, BLOCKS, SOURCES = 3584, 16, 896, 64, 8, 4
SHARED = 768
"""Numbers of the shared experts on one rank of eight, and here on any."""
NORM, COLLECT = 3, 5
"""Steps up to each that waits for other ranks."""
FEW = 8
"""Rows whose mix site leaves one GPU room for other ranks' up-projections."""
_EXCHANGES = 3
"""Per call: one more than a mailbox has halves, so that what one left behind would show."""
_ends: dict[int, Any] = {}
"""By number of ranks, made once: see `oproj`."""


class TailCase(GpuCase):
    """slots [R, B, K, L] and the shared experts' hidden numbers [B, S] to the prefix [B, D] and the
    next mix site's y [B, D]."""

    op = "moe_tail"
    ranks = 2
    """Of delays: every other rank is as late as the first or the second."""
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "rank", "column"),
        "prefix": ("row", "rank", "column"),
    }
    input_rows = {"slots": 1, "active": 0, "prefix": 0, "bank": 0, "ids": 0, "owned": 0}  # noqa: RUF012
    output_rows = dict.fromkeys(outputs, 0)
    planting = {  # noqa: RUF012
        "last_rank_lost": lambda i: i | {"slots": _without_last(i["slots"], 0)},
        "last_expert_lost": lambda i: i | {"slots": _without_last(i["slots"], 2)},
        "latent_gain_scaled": lambda i: i | {"gain_latent": i["gain_latent"] * 1.05},
        "shared_of_next_rank": lambda i: i | {"shared_down": i["shared_down"].roll(SHARED, 1)},
    }

    def every(self) -> list[Regime]:
        """Every batch with two ranks, as many as eight, padding."""
        plain = {"ranks": 2, "padding": 0}
        made = [plain | {"batch": batch} for batch in BATCHES]
        made += [plain | {"batch": batch, "ranks": 8} for batch in (1, 4)]
        return [*made, *(plain | {"batch": batch, "padding": 2} for batch in (3, 16))]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """What padding rows hold is NaN, and so are blocks not yet stored."""
        random = common.generator(seed, regime)
        batch, ranks = regime["batch"], regime["ranks"]
        live = batch - regime["padding"]
        made = {
            "slots": torch.randn(ranks, batch, TOP_K, LATENT, generator=random) * 0.2,
            "ids": torch.randint(0, EXPERTS, (batch, TOP_K), generator=random, dtype=torch.int32),
            "active": common.normal(random, batch, SHARED * ranks, scale=0.5),
            "shared_down": common.normal(random, HIDDEN, SHARED * ranks, scale=SHARED**-0.5),
            "up": common.normal(random, HIDDEN, LATENT, scale=LATENT**-0.5),
            "gain_latent": 1 + 0.1 * torch.randn(LATENT, generator=random),
            "prefix": common.normal(random, batch, HIDDEN),
            "bank": common.normal(random, batch, BLOCKS, HIDDEN),
            "score": torch.randn(HIDDEN, generator=random) * HIDDEN**-0.5,
            "gain": 1 + 0.1 * torch.randn(HIDDEN, generator=random),
            "owned": (torch.arange(batch) < live).int(),
        }
        for name in ("active", "prefix", "bank"):
            made[name][live:] = NAN
        made["slots"][:, live:], made["ids"][live:] = NAN, -1
        made["bank"][:, SOURCES:] = NAN
        return made

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers where nothing may be read, or nothing may come of it."""
        names = ("slots", "active", "prefix", "bank")
        return inputs | {name: common.filled(inputs[name], seed) for name in names}

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """Ranks' sums rounded to BF16 by stock, as is what sums become; maps are the engine's own
        BF16 products."""
        exact, ranks = dtype == torch.float64, len(inputs["slots"])
        map_ = _exact if exact else _bf16
        live = (inputs["ids"] >= 0)[None, ..., None]
        shares = torch.where(live, inputs["slots"].to(dtype), 0.0).sum(2)
        latent = common.kept(common.kept(shares, dtype).to(dtype).sum(0), dtype).to(dtype)
        normed = common.kept(rms_norm(latent, inputs["gain_latent"].to(dtype), EPS), dtype)
        split = (inputs[name].chunk(ranks, 1) for name in ("active", "shared_down"))
        parts = torch.stack([map_(x, w) for x, w in zip(*split, strict=True)])
        shared = common.kept(parts.to(dtype).sum(0), dtype)
        routed = map_(normed, inputs["up"])
        delta = common.kept(routed.to(dtype) + shared.to(dtype), dtype).to(dtype)
        prefix = common.kept(inputs["prefix"].to(dtype) + delta, dtype).to(dtype)
        score, gain = inputs["score"].to(dtype), inputs["gain"].to(dtype)
        stored = list(inputs["bank"][:, :SOURCES].to(dtype).unbind(1))
        mixed = attn_res.mix(prefix, stored, torch.ones_like(score), score, EPS)
        made = {"y": rms_norm(mixed, gain, EPS), "prefix": prefix}
        return _of_owned(
            {name: torch.stack([common.kept(one, dtype)] * ranks) for name, one in made.items()},
            inputs["owned"],
        )

    def candidate(self, inputs: Tensors) -> Tensors:
        """All kernels of every rank, in turn."""
        return self._exchanged(inputs, in_turn)

    def candidate_skewed(self, inputs: Tensors, delays_s: Sequence[float]) -> Tensors:
        """The rank that comes first waits in its kernels for the others."""
        late_ones = partial(late, delays_s=delays_s, waits=waits(len(inputs["active"])))
        return self._exchanged(inputs, late_ones)

    def _exchanged(self, inputs: Tensors, meet: Callable[[Programs], None]) -> Tensors:
        """Twice the negative slots, then what was asked for."""
        from kimi_k3.kernels.attn_res.kernel import Site
        from kimi_k3.kernels.gpu import Bound
        from kimi_k3.kernels.moe import launch
        from kimi_k3.kernels.oproj.form import Exchange
        from kimi_k3.kernels.oproj.mailbox import loop_back

        ranks, batch = inputs["slots"].shape[:2]
        latent, row = Exchange(ranks, LATENT, CAPACITY), Exchange(ranks, HIDDEN // ranks, CAPACITY)
        if ranks not in _ends:
            _ends[ranks] = [loop_back(one) for one in (latent, row, row)]
        slots, ids = -inputs["slots"], inputs["ids"]
        site = Site(HIDDEN, batch, BLOCKS, SOURCES, "add", False, EPS)
        prefix, bank = (torch.stack([inputs[name]] * ranks) for name in ("prefix", "bank"))
        y = torch.empty_like(prefix)
        fixed = {name: inputs[name] for name in ("score", "gain")}
        programs: list[tuple[Any, ...]] = []
        for rank, (sums, shares, rows) in enumerate(zip(*_ends[ranks], strict=True)):
            own = slice(rank * SHARED, (rank + 1) * SHARED)
            active = inputs["active"][:, own].contiguous()
            down = inputs["shared_down"][:, own].contiguous()
            up = inputs["up"].chunk(ranks)[rank]
            normed = active.new_empty(batch, LATENT)
            programs.append((
                Bound(launch.publish_shares(SHARED, batch, row), x=active, w=down,
                      peers=shares.peers, turn=shares.turn),
                Bound(launch.publish_latent(batch, latent), slots=slots[rank], ids=ids,
                      peers=sums.peers, turn=sums.turn),
                Bound(launch.norm_latent(batch, latent, EPS), mailbox=sums.mailbox,
                      turn=sums.turn, gain=inputs["gain_latent"], y=normed),
                Bound(launch.publish_row(LATENT, batch, row), x=normed, w=up, peers=rows.peers,
                      turn=rows.turn, shares=shares.mailbox, shares_turn=shares.turn),
                Bound(launch.collect_row(site, row), prefix=prefix[rank], bank=bank[rank],
                      y=y[rank], mailbox=rows.mailbox, turn=rows.turn, **fixed),
            ))  # fmt: skip
        for number in range(_EXCHANGES):
            prefix.copy_(inputs["prefix"].expand_as(prefix))
            if number == _EXCHANGES - 1:
                slots.copy_(inputs["slots"])
            meet(programs)
        return _of_owned({"y": y, "prefix": prefix}, inputs["owned"])

    def work(self, regime: Regime) -> dict[str, float]:
        """Weights of every rank."""
        elements = HIDDEN * (LATENT + SHARED * regime["ranks"])
        return {"bytes": 2.0 * elements, "flops": 2.0 * elements * regime["batch"]}


def waits(batch: int) -> list[int]:
    """Steps up to each that waits for late ranks: of its blocks, one per row and seven per row,
    there are so few that half of the multiprocessors have none."""
    return [NORM, COLLECT] if batch <= FEW else [NORM]


def _exact(x: Tensor, w: Tensor) -> Tensor:
    return x.double() @ w.double().t()


def _bf16(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, w)


def _of_owned(made: Tensors, owned: Tensor) -> Tensors:
    """By row first; 0 for padding rows."""
    live = owned[:, None, None] > 0
    rows = {name: one.transpose(0, 1) for name, one in made.items()}
    return {
        name: torch.where(live, one, 0.0).to(one.dtype).contiguous() for name, one in rows.items()
    }


def _without_last(slots: Tensor, axis: int) -> Tensor:
    changed = slots.clone()
    changed.select(axis, -1).zero_()
    return changed
