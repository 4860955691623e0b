"""Case `moe_front`: router, latent down-projection and the shared experts' first maps of all ranks,
and the choice of experts, on a GPU.

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
    HIDDEN,
    NAN,
    GpuCase,
    Programs,
    Regime,
    Tensors,
    in_turn,
    late,
)
from kimi_k3.kernels.common import situ
from kimi_k3.reference.moe import route

EXPERTS, LATENT, TOP_K, CAPACITY = 896, 3584, 16, 64
SHARED = 768
"""Numbers of the shared experts on one rank of eight, and here on any."""
BETA, LINEAR_BETA = 4.0, 25.0
GAP = 1e-5
"""Least distance between the last chosen key and the next: closer ones may change places by the
last bits of their sums, in stock as well."""
_EXCHANGES = 3
"""Per call: one more than a mailbox has halves, so that what one left behind would show."""
_ends: dict[int, Any] = {}
"""By number of ranks, made once: see `oproj`."""


class FrontCase(GpuCase):
    """x [B, D] to latent numbers z [B, L], the K experts of each row, lowest number first, with
    their weights, and the shared experts' hidden numbers [B, S]."""

    op = "moe_front"
    ranks = 2
    """Of delays: every other rank is as late as the first or the second."""
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "z": ("row", "column"),
        "experts": ("row", "place"),
        "gains": ("row", "place"),
        "active": ("row", "column"),
    }
    input_rows = {"x": 0, "owned": 0}  # noqa: RUF012
    output_rows = dict.fromkeys(outputs, 0)
    planting = {  # noqa: RUF012
        "router_scaled": lambda i: i | {"router": i["router"] * 1.02},
        "bias_left_out": lambda i: i | {"bias": torch.zeros_like(i["bias"])},
        "router_rounded_to_fp8": lambda i: (
            i | {"router": i["router"].to(torch.float8_e4m3fn).to(i["router"].dtype)}
        ),
        "last_latents_lost": lambda i: i | {"down": _without_last(i["down"])},
        "gate_and_up_swapped": lambda i: i | {"gate_up": i["gate_up"].flip(0)},
    }

    def every(self) -> list[Regime]:
        """One and two ranks, every batch with eight, padding; in launches of their own (`apart`)
        what else is one with the router's."""
        plain = {"ranks": 8, "apart": 0, "padding": 0}
        made = [plain | {"batch": batch, "ranks": ranks} for batch in (1, 33) for ranks in (1, 2)]
        made += [plain | {"batch": batch} for batch in BATCHES]
        made += [plain | {"batch": batch, "apart": 1} for batch in (1, 64)]
        return [*made, *(plain | {"batch": batch, "padding": 2} for batch in (3, 16))]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Rows whose choice hangs on a bit are drawn again. What padding rows hold is NaN."""
        random = common.generator(seed, regime)
        batch = regime["batch"]
        live = batch - regime["padding"]
        made = {
            "router": common.normal(random, EXPERTS, HIDDEN, scale=HIDDEN**-0.5),
            "down": common.normal(random, LATENT, HIDDEN, scale=HIDDEN**-0.5),
            "bias": 0.05 * torch.randn(EXPERTS, generator=random),
            "owned": (torch.arange(batch) < live).int(),
            "gate_up": common.normal(
                random, 2, SHARED * regime["ranks"], HIDDEN, scale=HIDDEN**-0.5
            ),
            "form": torch.zeros(regime["ranks"], 1 + regime["apart"], dtype=torch.int8),
        }
        wide = made["router"].float().t()
        rows: list[Tensor] = []
        while len(rows) < batch:
            drawn = common.normal(random, batch, HIDDEN)
            keys = (torch.sigmoid(drawn.float() @ wide) + made["bias"]).sort(-1, descending=True)
            clear = keys.values[:, TOP_K - 1] - keys.values[:, TOP_K] > GAP
            rows += list(drawn[clear])
        made["x"] = torch.stack(rows[:batch])
        made["x"][live:] = NAN
        return made

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers where nothing may come of it."""
        return inputs | {"x": common.filled(inputs["x"], seed)}

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """The engine's BF16 products, FP32 logits of BF16 operands, the reference's choice."""
        x, live = inputs["x"], inputs["owned"][:, None] > 0
        z, gate, up = (_product(x, w, dtype) for w in (inputs["down"], *inputs["gate_up"]))
        active = common.kept(situ(gate.to(dtype), up.to(dtype), BETA, LINEAR_BETA), dtype)
        logits = _logits(x, inputs["router"], dtype)
        chosen = route(logits, inputs["bias"].to(dtype), TOP_K, 1.0)
        made = {"z": z, "active": active, **_by_number(chosen.ids, chosen.weights)}
        return {name: torch.where(live, one, 0.0).to(one.dtype) for name, one in made.items()}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The kernels of every rank, in turn."""
        return self._exchanged(inputs, in_turn)

    def candidate_skewed(self, inputs: Tensors, delays_s: Sequence[float]) -> Tensors:
        """The rank that comes first waits in its kernel for the others."""
        return self._exchanged(inputs, partial(late, delays_s=delays_s, waits=[2]))

    def _exchanged(self, inputs: Tensors, meet: Callable[[Programs], None]) -> Tensors:
        """Twice the negative, then what was asked for."""
        from kimi_k3.kernels.gpu import Bound
        from kimi_k3.kernels.moe import launch
        from kimi_k3.kernels.oproj.mailbox import loop_back
        from kimi_k3.kernels.projection.launch import projection

        (ranks, kinds), batch = inputs["form"].shape, len(inputs["x"])
        width, merged = SHARED, SHARED if kinds == 1 else 0
        exchange = launch.front_exchange(EXPERTS, LATENT, ranks, CAPACITY)
        if ranks not in _ends:
            _ends[ranks] = loop_back(exchange)
        # An engine has padding behind its rows, so they go there and come back.
        order = inputs["owned"].argsort(descending=True, stable=True)
        back = order.argsort()
        x = -inputs["x"]
        rows = inputs["owned"].sum(dtype=torch.int32).view(1)
        z = x.new_empty(ranks, batch, LATENT)
        ids = rows.new_empty(ranks, batch, TOP_K)
        gains = torch.empty_like(ids, dtype=torch.float32)
        both, active = x.new_empty(ranks, batch, 2 * width), x.new_empty(ranks, batch, width)
        publish = launch.publish_front(HIDDEN, EXPERTS, LATENT, batch, exchange, shared=merged)
        choose = launch.route(EXPERTS, LATENT, batch, exchange, TOP_K, shared=merged)
        programs: list[list[Any]] = []
        for rank, end in enumerate(_ends[ranks]):
            own = slice(rank * width, (rank + 1) * width)
            gate_up = inputs["gate_up"][:, own].reshape(2 * width, HIDDEN)
            into = [inputs[name].chunk(ranks)[rank] for name in ("router", "down")]
            first = {"gate_up": both[rank]} if merged else {}
            second = {"gate_up": both[rank], "active": active[rank]}
            w = torch.cat([*into, *([gate_up] if merged else [])])
            program = [
                Bound(publish, x=x, w=w, peers=end.peers, turn=end.turn, **first),
                Bound(choose, mailbox=end.mailbox, turn=end.turn, bias=inputs["bias"], rows=rows,
                      ids=ids[rank], gains=gains[rank], z=z[rank], **(second if merged else {})),
            ]  # fmt: skip
            if not merged:
                map_ = projection(2 * width, HIDDEN, batch)
                program += [Bound(map_, x=x, w=gate_up, y=both[rank]),
                            Bound(launch.activate(batch, width), gate_up=both[rank],
                                  y=active[rank])]  # fmt: skip
            programs.append(program)
        for number in range(_EXCHANGES):
            if number == _EXCHANGES - 1:
                x.copy_(inputs["x"][order])
            meet(programs)
        live = inputs["owned"][:, None] > 0
        made = {"z": _agreed(z), **_by_number(_agreed(ids), _agreed(gains))}
        hidden = torch.cat(list(active), 1)[back]
        return {
            **{name: one[back] for name, one in made.items()},
            "active": torch.where(live, hidden, 0.0).to(x.dtype),
        }

    def work(self, regime: Regime) -> dict[str, float]:
        """Weights of every rank."""
        elements = (EXPERTS + LATENT + 2 * SHARED * regime["ranks"]) * HIDDEN
        return {"bytes": 2.0 * elements, "flops": 2.0 * elements * regime["batch"]}


def _product(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float64:
        return x.double() @ w.double().t()
    return torch.nn.functional.linear(x, w)


def _logits(x: Tensor, router: Tensor, dtype: torch.dtype) -> Tensor:
    """In `dtype`; in FP32, where a GPU is there, by its BF16 product with FP32 results."""
    if dtype == torch.float64 or not x.is_cuda:
        return x.to(dtype) @ router.to(dtype).t()
    return torch.mm(x, router.t(), out_dtype=dtype)


def _agreed(ranks: Tensor) -> Tensor:
    """What all ranks found, NaN (or -2) where they differ."""
    same = (ranks.view(torch.uint8) == ranks[:1].view(torch.uint8)).all(0)
    whole = same.unflatten(-1, (-1, ranks.element_size())).all(-1)
    return torch.where(whole, ranks[0], NAN if ranks.is_floating_point() else -2).to(ranks.dtype)


def _by_number(ids: Tensor, gains: Tensor) -> Tensors:
    """Experts and their weights by number; of a row without experts, 0."""
    numbers, order = ids.sort(1)
    there = numbers >= 0
    sorted_ = torch.where(there, gains.gather(1, order), 0.0).to(gains.dtype)
    return {"experts": torch.where(there, numbers, 0).float(), "gains": sorted_}


def _without_last(down: Tensor) -> Tensor:
    """The last one per cent of the latent numbers lost."""
    changed = down.clone()
    changed[-(len(down) // 100) :] = 0
    return changed
