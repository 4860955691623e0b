"""Case `kda`: everything between two projections of a KDA layer, on a GPU.

Owns: inputs, truth, stock arithmetic and candidate. Read by: the harness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kimi_k3.cases.gpu import common
from kimi_k3.cases.gpu.common import BATCHES, EPS, NAN, GpuCase, Regime, Tensors
from kimi_k3.reference import kda

WIDTH, TAPS, BOUND = 128, 4, -5.0
SPARE = 4
"""Slots of nobody, the null slot among them."""
_POOLS = ("conv", "recurrent")
_WEIGHTS = ("taps", "decay_up", "decay_bias", "decay_speed", "norm")


class KdaCase(GpuCase):
    """q tokens per request, [q, B, ...], from the packed projection to the gated heads; a state
    after every token."""

    op = "kda"
    outputs = {  # noqa: RUF012 - part of the protocol, never changed
        "y": ("token", "row", "column"),
        "conv": ("token", "row", "channel"),
        "state": ("token", "row", "head", "element"),
        "untouched": ("slot", "element"),
    }
    in_place = _POOLS
    input_rows = {"projected": 1, "source": 0, "target": 1}  # noqa: RUF012
    output_rows = dict.fromkeys(("y", "conv", "state"), 1)
    planting = {  # noqa: RUF012
        "decay_without_bias": lambda i: i | {"decay_bias": 0 * i["decay_bias"]},
        "oldest_tap_lost": lambda i: i | {"taps": _without_oldest(i["taps"])},
        "gain_rounded_to_fp8": lambda i: i | {"norm": i["norm"].to(torch.float8_e4m3fn).float()},
    }

    def every(self) -> list[Regime]:
        """Every batch; other head counts; verifications; padding rows; states moved or in place."""
        plain = {"heads": 12, "tokens": 1, "null": 0, "moved": 0}
        made = [plain | {"batch": batch} for batch in BATCHES]
        made += [plain | {"batch": b, "heads": h} for h in (6, 24) for b in (1, 3, 16)]
        made += [plain | {"batch": 1, "heads": 96}]
        made += [plain | {"batch": b, "tokens": q} for q in (2, 4, 8) for b in (1, 5)]
        made += [plain | {"batch": 5, "tokens": q, "null": 2} for q in (1, 4)]
        return [*made, plain | {"batch": 5, "moved": 1}]

    def inputs(self, regime: Regime, seed: int) -> Tensors:
        """States of nobody are NaN, the null slot's too; so is what padding rows hold."""
        random = common.generator(seed, regime)
        heads, batch, tokens = (regime[name] for name in ("heads", "batch", "tokens"))
        wide, live = heads * WIDTH, batch - regime["null"]
        slots = 1 + torch.randperm(batch * (tokens + 1) + SPARE - 1, generator=random)
        target = slots[: batch * tokens].view(tokens, batch).int()
        source = slots[-batch:].int() if regime["moved"] else target[0].clone()
        source[live:], target[:, live:] = 0, 0
        pitch = -(-(4 * wide + WIDTH + heads) // 16) * 16
        count = len(slots) + 1
        made = {
            "projected": common.normal(random, tokens, batch, pitch),
            "conv": torch.full((count, TAPS - 1, 3 * wide), NAN, dtype=torch.bfloat16),
            "recurrent": torch.full((count, heads, WIDTH, WIDTH), NAN),
            "source": source,
            "target": target,
            "taps": torch.randn(TAPS, 3 * wide, generator=random) * 0.5,
            "decay_up": common.normal(random, wide, WIDTH, scale=WIDTH**-0.5),
            "decay_bias": torch.randn(heads, WIDTH, generator=random),
            "decay_speed": torch.rand(heads, generator=random) + 0.5,
            "norm": 1 + 0.1 * torch.randn(WIDTH, generator=random),
        }
        made["projected"][:, live:] = NAN
        owned = source[:live].long()
        made["conv"][owned] = common.normal(random, live, TAPS - 1, 3 * wide)
        made["recurrent"][owned] = torch.randn(live, heads, WIDTH, WIDTH, generator=random)
        return made

    def other_padding(self, inputs: Tensors, seed: int) -> Tensors:
        """Finite numbers in states of nobody and rows of padding."""
        names = (*_POOLS, "projected")
        return inputs | {name: common.filled(inputs[name], seed) for name in names}

    def other_scalars(self, inputs: Tensors, seed: int) -> Tensors:
        """Every state in another slot."""
        random = torch.Generator().manual_seed(seed)
        count = len(inputs["conv"])
        moved = 1 + torch.randperm(count - 1, generator=random)
        places = torch.cat((torch.zeros(1).long(), moved)).to(inputs["source"].device)
        made = dict(inputs)
        for name in _POOLS:
            made[name] = torch.empty_like(inputs[name])
            made[name][places] = inputs[name]
        return made | {n: places[inputs[n].long()].int() for n in ("source", "target")}

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """The reference's steps, rounded where the engine's fused kernel rounds."""
        projected = inputs["projected"].to(dtype)
        taps, up, bias, speed, norm = (inputs[name].to(dtype) for name in _WEIGHTS)
        heads = len(speed)
        wide = heads * WIDTH
        source, target = inputs["source"].long(), inputs["target"].long()
        live = source > 0
        conv, recurrent = (inputs[name][source].to(dtype) for name in _POOLS)
        ys = []
        for token, row in enumerate(projected):
            qkv, gate, low, beta, _ = row.split(
                [3 * wide, wide, WIDTH, heads, row.shape[1] - 4 * wide - WIDTH - heads], dim=-1
            )
            convolved, conv = kda.conv_step(qkv, conv, taps.t())
            split = convolved.unflatten(-1, (3, heads, WIDTH))
            q, k, v = torch.nn.functional.silu(split).unbind(1)
            q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + kda.L2_EPS) * WIDTH**-0.5
            k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + kda.L2_EPS)
            raw = common.kept(low @ up.t(), dtype).to(dtype).unflatten(-1, (heads, WIDTH))
            decay = kda.log_decay(raw, speed.log(), bias.flatten(), BOUND)
            o, recurrent = kda.delta_step(q, k, v, decay, torch.sigmoid(beta), recurrent)
            o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPS) * norm
            y = o * torch.sigmoid(gate.unflatten(-1, (heads, WIDTH)))
            ys.append(torch.where(live[:, None], y.flatten(1), 0.0))
            owned = live & (target[token] > 0)
            for name, state in zip(_POOLS, (conv, recurrent), strict=True):
                inputs[name][target[token][owned]] = state[owned].to(inputs[name].dtype)
        made = _outputs(torch.stack(ys), inputs)
        made["y"] = common.kept(made["y"], dtype)
        return made

    def candidate(self, inputs: Tensors) -> Tensors:
        """The kernel, in place on the states."""
        from kimi_k3.kernels.kda.launch import kda as cut

        tokens, batch, pitch = inputs["projected"].shape
        heads = len(inputs["decay_speed"])
        y = inputs["projected"].new_empty(tokens * batch, heads * WIDTH)
        kernel = cut(heads, batch, tokens, len(inputs["conv"]), BOUND)
        flat = {"projected": inputs["projected"].view(-1, pitch), "y": y}
        common.launched(kernel, {n: inputs[n] for n in kernel.arguments() if n != "y"} | flat)
        return _outputs(y.view(tokens, batch, -1), inputs)


def _outputs(y: Tensor, inputs: Tensors) -> Tensors:
    """`y` and what the states hold now; nobody's states bit by bit."""
    at = inputs["target"].long()
    conv, recurrent = inputs["conv"], inputs["recurrent"]
    live = (at > 0)[..., None]
    count = len(conv)
    # Where nobody's states lie is data: they are found without asking how many there are.
    taken = torch.zeros(count, dtype=torch.int32, device=at.device).index_fill(0, at.flatten(), 1)
    order = torch.argsort(taken, stable=True)[: count - at.numel()]
    others = torch.cat((conv.flatten(1)[order].float(), recurrent.flatten(1)[order]), dim=1)
    return {
        "y": y,
        "conv": torch.where(live, conv[at].flatten(2), 0.0),
        "state": torch.where(live[..., None], recurrent[at].flatten(3), 0.0),
        "untouched": others,
    }


def _without_oldest(taps: Tensor) -> Tensor:
    changed = taps.clone()
    changed[0] = 0
    return changed
