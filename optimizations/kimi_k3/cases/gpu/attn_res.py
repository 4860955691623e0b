"""Case `attn_res`: one mix site on a GPU.

Owns: inputs, truth, stock arithmetic and candidate. Read by: the harness.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kimi_k3.cases.gpu import common
from kimi_k3.cases.gpu.common import BATCHES, EPS, HIDDEN, NAN, GpuCase, Regime, Tensors
from kimi_k3.reference import attn_res

BLOCKS = 8
DELTAS: tuple[Literal["none", "add", "restart"], ...] = ("none", "add", "restart")


class AttnResCase(GpuCase):
    """Prefix, delta and bank [B, N, D] through prefix add, block write, mixture and norm."""

    op = "attn_res"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("row", "column"),
        "prefix": ("row", "column"),
        "stored": ("row", "column"),
        "untouched": ("row", "block", "column"),
    }
    in_place = ("prefix", "bank")
    input_rows = dict.fromkeys(("prefix", "delta", "bank"), 0)
    output_rows = dict.fromkeys(("y", "prefix", "stored", "untouched"), 0)
    planting = {  # noqa: RUF012
        "delta_lost": lambda i: i | {"delta": 0 * i["delta"]},
        "score_of_a_neighbour": lambda i: i | {"score": i["score"].roll(1)},
        "gain_rounded_to_fp8": lambda i: i | {"gain": i["gain"].to(torch.float8_e4m3fn).float()},
    }

    def every(self) -> list[Regime]:
        """Every batch, and every number of sources with every way the prefix changes."""
        made = [
            {"batch": batch, "sources": n % 9, "delta": 1, "write": 0, "final": 0}
            for n, batch in enumerate(BATCHES, start=3)
        ]
        made += [
            {"batch": 3, "sources": n, "delta": delta, "write": int(n < BLOCKS), "final": 0}
            for n in range(BLOCKS + 1)
            for delta in (0, 1)
        ]
        made += [
            {"batch": 3, "sources": n, "delta": 2, "write": 0, "final": 0}
            for n in range(1, BLOCKS + 1)
        ]
        return [*made, {"batch": 3, "sources": 8, "delta": 1, "write": 0, "final": 1}]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """Blocks not yet stored are NaN; so is a delta or prefix that is not read."""
        random = common.generator(seed, regime)
        batch = regime["batch"]
        made = {name: common.normal(random, batch, HIDDEN) for name in ("prefix", "delta")}
        made["bank"] = common.normal(random, batch, BLOCKS, HIDDEN)
        made["bank"][:, regime["sources"] :] = NAN
        unread = {"none": "delta", "restart": "prefix"}.get(DELTAS[regime["delta"]])
        if unread:
            made[unread].fill_(NAN)
        made["score"] = torch.randn(HIDDEN, generator=random) * HIDDEN**-0.5
        made["gain"] = 1 + 0.1 * torch.randn(HIDDEN, generator=random)
        # Code is made for one form, so the form is told by a shape: no value has to be read.
        form = (1 + regime[name] for name in ("sources", "delta", "write", "final"))
        return made | {"form": torch.zeros(*form, dtype=torch.int8)}

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers where nothing may be read."""
        names = ("prefix", "delta", "bank")
        return inputs | {name: common.filled(inputs[name], seed) for name in names}

    def faults(self, regime: Regime) -> list[str]:
        """What has an effect here: without a delta none can be lost, and the prefix alone is taken
        whatever its score."""
        idle = {"delta_lost": not regime["delta"], "score_of_a_neighbour": not regime["sources"]}
        return [name for name in self.planting if not idle.get(name)]

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """The reference's site; truth and stock differ in dtype and roundings only."""
        sources, delta, write, final = (size - 1 for size in inputs["form"].shape)
        parts = {name: inputs[name].to(dtype) for name in ("prefix", "delta", "bank")}
        score, gain = inputs["score"].to(dtype), inputs["gain"].to(dtype)
        prefix = (
            parts["prefix"], parts["prefix"] + parts["delta"], parts["delta"]
        )[delta]  # fmt: skip
        prefix = common.kept(prefix, dtype)
        stored = list(parts["bank"][:, :sources].unbind(1))
        mixed = attn_res.mix(prefix.to(dtype), stored, torch.ones_like(score), score, EPS)
        if final:
            mixed = common.kept(mixed, dtype).to(dtype)
        y = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + EPS) * gain
        made = _stored(prefix, inputs["bank"], sources, write)
        made["stored"] = prefix.clone()
        return {"y": common.kept(y, dtype), "prefix": prefix, **made}

    def candidate(self, inputs: Tensors) -> Tensors:
        """The kernel, in place on prefix and bank."""
        from kimi_k3.kernels.attn_res.kernel import AttnRes, Site

        batch, blocks, hidden = inputs["bank"].shape
        sources, delta, write, final = (size - 1 for size in inputs["form"].shape)
        site = Site(
            hidden, batch, blocks, sources, DELTAS[delta], bool(write), EPS, bool(final)
        )  # fmt: skip
        y = torch.empty_like(inputs["prefix"])
        names = ("prefix", "delta", "bank", "score", "gain")
        common.launched(AttnRes(site), {n: inputs[n] for n in names} | {"y": y})
        prefix = inputs["prefix"].clone()
        return {"y": y, "prefix": prefix, **_stored(prefix, inputs["bank"], sources, write)}


def _stored(prefix: Tensor, bank: Tensor, sources: int, write: int) -> Tensors:
    """The block just written (the prefix where none is), and every other one."""
    stored = bank[:, sources] if write else prefix
    others = torch.cat((bank[:, :sources], bank[:, sources + write :]), dim=1)
    return {"stored": stored.clone(), "untouched": others}
