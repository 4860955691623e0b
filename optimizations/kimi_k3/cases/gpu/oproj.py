"""Case `oproj`: output projection, sum over ranks, prefix and mix site, on a GPU.

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
from kimi_k3.reference import attn_res

BLOCKS, WIDTH, CAPACITY = 8, 128, 64
_EXCHANGES = 3
"""Per call: one more than a mailbox has halves, so that what one left behind would show."""
_ends: dict[int, Any] = {}
"""By number of ranks. Made once: nothing may be allocated while a graph is captured, and what one
call leaves in a mailbox the next must bear."""


class OProjCase(GpuCase):
    """x [R, B, K] and w [R, D, K] of R ranks through mailboxes into everybody's prefix."""

    op = "oproj"
    ranks = 3
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "rank", "column"),
        "prefix": ("row", "rank", "column"),
    }
    input_rows = {"x": 1, "prefix": 0, "bank": 0, "owned": 0}  # noqa: RUF012
    output_rows = dict.fromkeys(outputs, 0)
    planting = {  # noqa: RUF012
        "last_rank_lost": lambda i: i | {"x": _without_last(i["x"])},
        "rank_counted_twice": lambda i: i | {"x": i["x"][[0, 0, *range(2, len(i["x"]))]]},
        "weights_rounded_to_fp8": lambda i: (
            i | {"w": i["w"].to(torch.float8_e4m3fn).to(i["w"].dtype)}
        ),
    }

    def every(self) -> list[Regime]:
        """Every batch; both ways the prefix changes; other head counts; padding rows."""
        plain = {"heads": 12, "sources": 4, "restart": 0, "padding": 0}
        made = [plain | {"batch": batch, "sources": n % 9} for n, batch in enumerate(BATCHES)]
        made += [plain | {"batch": batch, "restart": 1} for batch in (1, 5, 64)]
        made += [plain | {"batch": batch, "heads": 6} for batch in (1, 3, 16, 64)]
        return [*made, *(plain | {"batch": batch, "padding": 2} for batch in (3, 16))]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """What padding rows hold is NaN, and so are blocks not yet stored."""
        random = common.generator(seed, regime)
        batch, width = regime["batch"], regime["heads"] * WIDTH
        live = batch - regime["padding"]
        made = {
            "x": common.normal(random, self.ranks, batch, width),
            "w": common.normal(
                random, self.ranks, HIDDEN, width, scale=(self.ranks * width) ** -0.5
            ),
            "prefix": common.normal(random, batch, HIDDEN),
            "bank": common.normal(random, batch, BLOCKS, HIDDEN),
            "score": torch.randn(HIDDEN, generator=random) * HIDDEN**-0.5,
            "gain": 1 + 0.1 * torch.randn(HIDDEN, generator=random),
            "owned": (torch.arange(batch) < live).int(),
            # Code is made for one form, so the form is told by a shape: no value has to be read.
            "form": torch.zeros(1 + regime["sources"], 1 + regime["restart"], dtype=torch.int8),
        }
        made["x"][:, live:] = NAN
        for name in ("prefix", "bank"):
            made[name][live:] = NAN
        made["bank"][:, regime["sources"] :] = NAN
        if regime["restart"]:
            made["prefix"].fill_(NAN)
        return made

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers where nothing may be read, or nothing may come of it."""
        names = ("x", "prefix", "bank")
        return inputs | {name: common.filled(inputs[name], seed) for name in names}

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """Shares of ranks, rounded to BF16 by stock, as is their sum; then the reference's site."""
        sources, restart = (size - 1 for size in inputs["form"].shape)
        if dtype == torch.float64:
            shares = inputs["x"].double() @ inputs["w"].double().transpose(1, 2)
        else:
            pairs = zip(inputs["x"], inputs["w"], strict=True)
            shares = torch.stack([torch.nn.functional.linear(x, w) for x, w in pairs])
        delta = common.kept(shares.to(dtype).sum(0), dtype).to(dtype)
        prefix = delta if restart else inputs["prefix"].to(dtype) + delta
        prefix = common.kept(prefix, dtype).to(dtype)
        score, gain = inputs["score"].to(dtype), inputs["gain"].to(dtype)
        stored = list(inputs["bank"][:, :sources].to(dtype).unbind(1))
        mixed = attn_res.mix(prefix, stored, torch.ones_like(score), score, EPS)
        y = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + EPS) * gain
        ranks = range(len(inputs["x"]))
        made = {"y": common.kept(y, dtype), "prefix": common.kept(prefix, dtype)}
        return _of_owned({name: torch.stack([one for _ in ranks]) for name, one in made.items()},
                         inputs["owned"])  # fmt: skip

    def candidate(self, inputs: Tensors) -> Tensors:
        """Both kernels of every rank, in turn."""
        return self._exchanged(inputs, in_turn)

    def candidate_skewed(self, inputs: Tensors, delays_s: Sequence[float]) -> Tensors:
        """The rank that comes first waits in its kernel for the others."""
        return self._exchanged(inputs, partial(late, delays_s=delays_s, waits=[2]))

    def _exchanged(self, inputs: Tensors, meet: Callable[[Programs], None]) -> Tensors:
        """Exchange the negative, twice, and then what was asked for."""
        from kimi_k3.kernels.attn_res.kernel import Site
        from kimi_k3.kernels.gpu import Bound
        from kimi_k3.kernels.oproj.form import Exchange
        from kimi_k3.kernels.oproj.launch import collect, publish
        from kimi_k3.kernels.oproj.mailbox import loop_back

        ranks, batch, width = inputs["x"].shape
        sources, restart = (size - 1 for size in inputs["form"].shape)
        exchange = Exchange(ranks, HIDDEN, CAPACITY)
        if ranks not in _ends:
            _ends[ranks] = loop_back(exchange)
        site = Site(
            HIDDEN, batch, BLOCKS, sources, "restart" if restart else "add", False, EPS
        )  # fmt: skip
        x = -inputs["x"]
        prefix, bank = (torch.stack([inputs[name]] * ranks) for name in ("prefix", "bank"))
        y = torch.empty_like(prefix)
        shared = {name: inputs[name] for name in ("score", "gain")}
        programs = [
            (Bound(publish(width, batch, exchange), x=x[rank], w=inputs["w"][rank],
                   peers=end.peers, turn=end.turn),
             Bound(collect(site, exchange), prefix=prefix[rank], bank=bank[rank], y=y[rank],
                   mailbox=end.mailbox, turn=end.turn, **shared))
            for rank, end in enumerate(_ends[ranks])
        ]  # fmt: skip
        for last in (number == _EXCHANGES - 1 for number in range(_EXCHANGES)):
            prefix.copy_(inputs["prefix"].expand_as(prefix))
            if last:
                x.copy_(inputs["x"])
            meet(programs)
        return _of_owned({"y": y, "prefix": prefix}, inputs["owned"])

    def work(self, regime: Regime) -> dict[str, float]:
        """Weights of every rank."""
        elements = self.ranks * HIDDEN * regime["heads"] * WIDTH
        return {"bytes": 2.0 * elements, "flops": 2.0 * elements * regime["batch"]}


def _of_owned(made: Tensors, owned: Tensor) -> Tensors:
    """By row first, as outputs [R, B, D] of ranks are not; 0 for padding rows."""
    live = owned[:, None, None] > 0
    rows = {name: one.transpose(0, 1) for name, one in made.items()}
    return {
        name: torch.where(live, one, 0.0).to(one.dtype).contiguous() for name, one in rows.items()
    }


def _without_last(x: Tensor) -> Tensor:
    changed = x.clone()
    changed[-1] = 0
    return changed
