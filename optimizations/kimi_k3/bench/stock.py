"""`python -m kimi_k3.bench.stock [--batch 1,8,64] [--json FILE]`: beside vLLM 0.33's own kernels.

Needs vLLM 0.33.0 in the same environment. Stock is what its Kimi K3 launches at these shapes on
this device, chosen by its own tables: skinny GEMMs or cuBLAS, the split input projection with its
side stream, the fused KDA kernel, AttnRes. One rank of eight, so both sides leave the sum over
ranks out; `half+exchange` is ours with it, in loop-back, against stock without.

Where stock has two ways, the split input projection and the packed one, both are timed and the
faster is what ours is held against. Graphs take turns in one run, weights and states cold. Outputs
of both are compared first, so that the same work is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm import _custom_ops as vllm_ops
from vllm.models.kimi_k3.nvidia import low_latency_gemm as gemm
from vllm.models.kimi_k3.nvidia.ops.attn_res import attn_res as stock_attn_res
from vllm.utils.multi_stream_utils import maybe_execute_in_parallel

from kimi_k3.bench import ops
from kimi_k3.bench.timing import Call, captured, interleaved, read_bandwidth
from kimi_k3.kernels.gpu import Bound
from kimi_k3.kernels.projection.launch import projection

SOURCES = 4
WIDE, HIDDEN, HEADS, WIDTH = ops.WIDE, ops.HIDDEN, ops.HEADS, ops.WIDTH
LATENT = 2112
"""Rows of the packed MLA projection that stock keeps together; the gate is a product of its own."""


class Pair(NamedTuple):
    """One op both ways, as often as there are sets of buffers, and what they make of the first."""

    bytes_moved: float
    layers: int
    ours: list[Call]
    stock: dict[str, list[Call]]
    """By way."""
    same: Callable[[], float]
    """Distance of the two outputs over their size, after one call of each."""


def _sides(batch: int) -> dict[str, Side | None]:
    """Stock's ways into KDA."""
    split = batch <= gemm.KDA_PROJECTION_OVERLAP_MAX_TOKENS
    return {"split": Side(), "packed": None} if split else {"packed": None}


def _distance(ours: Tensor, stock: Tensor) -> float:
    a, b = ours.double().flatten(), stock.double().flatten()
    return float((a - b).norm() / b.norm())


def product(x: Tensor, w: Tensor) -> Tensor:
    """x [B, K], w [N, K] -> [B, N] by whatever stock chooses here."""
    made = gemm.try_low_latency_gemm(x, w)
    return torch.mm(x, w.t()) if made is None else made


class Side:
    """Stock's side stream and the events of its fork and join."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()
        self.events = torch.cuda.Event(), torch.cuda.Event()


def project(x: Tensor, w: Tensor, up: Tensor, side: Side | None) -> tuple[Tensor, Tensor, Tensor]:
    """Into KDA: q, k, v and gate [B, 4 * 1536], raw decay [B, 1536], beta [B, 12]; split where
    there is a side stream."""
    if side is not None:
        made = gemm.run_kda_projection_overlap(x, w, up, side.stream, side.events)
        return tuple(made)
    packed = product(x, w)
    low = packed[:, 4 * WIDE : 4 * WIDE + WIDTH]
    beta = packed[:, 4 * WIDE + WIDTH : 4 * WIDE + WIDTH + HEADS]
    return packed[:, : 4 * WIDE], product(low, up), beta


class StockHeads:
    """The same states and weights as stock's kernel wants them."""

    def __init__(self, layer: ops.Heads) -> None:
        fixed = layer.fixed
        self.conv, self.state = fixed["conv"].clone(), fixed["recurrent"].clone()
        taps = fixed["taps"].view(4, 3, WIDE).transpose(0, 1).contiguous()
        self.fixed = {
            "weight": taps, "bias": None, "A_log": fixed["decay_speed"].log(),
            "dt_bias": fixed["decay_bias"].flatten(), "state_indices": fixed["source"],
            "norm_weight": fixed["norm"], "lower_bound": ops.BOUND, "norm_eps": 1e-5,
        }  # fmt: skip
        self.y = torch.empty(1, layer.batch, HEADS, WIDTH, dtype=torch.bfloat16, device="cuda")

    def __call__(self, mixed: Tensor, raw: Tensor, beta: Tensor) -> Tensor:
        """q, k, v and gate, raw decay, beta -> [B, 1536]."""
        vllm_ops.fused_kda_decode(
            x=mixed[:, : 3 * WIDE], conv_state=self.conv.transpose(-1, -2), state=self.state,
            raw_g=raw.view(1, -1, HEADS, WIDTH), raw_beta=beta.unsqueeze(0), out=self.y,
            output_gate=mixed[:, 3 * WIDE :].unflatten(-1, (HEADS, WIDTH)), **self.fixed,
        )  # fmt: skip
        return self.y.view(-1, WIDE)


class StockResidual:
    """A mix site as stock's."""

    def __init__(self, site: ops.Residual) -> None:
        self.prefix, self.bank = site.prefix.clone(), site.bank
        # Ours takes the product of both; stock multiplies them in its kernel.
        self.norm, self.query = site.score.bfloat16(), torch.ones_like(site.score).bfloat16()
        self.gain = site.gain.bfloat16()
        site.score, site.gain = self.norm.float(), self.gain.float()

    def __call__(self, delta: Tensor, sources: int = SOURCES) -> Tensor:
        """The layer's input [B, D]."""
        return stock_attn_res(
            self.prefix, delta, self.bank, self.norm, self.query, self.gain, sources, -1,
            ops.EPS, ops.EPS,
        )  # fmt: skip


# ---- ops -----------------------------------------------------------------------------------------


def _output(call: Call) -> Tensor:
    """What one call makes: of ours, its y; of stock's, what it returns."""
    made: Any = call()
    return made if made is not None else call.tensors["y"]  # type: ignore[attr-defined]


def _pair(bytes_moved: float, ours: list[Call], stock: dict[str, list[Call]]) -> Pair:
    """Ops of one launch of ours each."""

    def same() -> float:
        mine = _output(ours[0])
        others = [_output(calls[0]) for calls in stock.values()]
        return max(_distance(mine[:, : other.shape[1]], other) for other in others)

    return Pair(bytes_moved, len(ours), ours, stock, same)


def linear(name: str, batch: int) -> Pair:
    """A packed map."""
    outputs, inputs = ops.MAPS[name]
    kernel, side = projection(outputs, inputs, batch), Side()
    ours: list[Call] = []
    stock: list[Call] = []
    for _ in range(ops.sets(2.0 * outputs * inputs)):
        x = ops.random(batch, inputs)
        w = ops.random(outputs, inputs, scale=inputs**-0.5)
        ours.append(Bound(kernel, x=x, w=w, y=x.new_empty(batch, outputs)))
        stock.append(partial(_gated, x, w, side) if name == "mla_in" else partial(product, x, w))
    return _pair(2.0 * outputs * inputs, ours, {"stock": stock})


def _gated(x: Tensor, w: Tensor, side: Side) -> Tensor:
    """Stock's two products of an MLA layer, one on the side stream; returns the first."""
    made: tuple[Tensor, Tensor] = maybe_execute_in_parallel(
        lambda: product(x, w[:LATENT]), lambda: product(x, w[LATENT:]), *side.events, side.stream
    )
    return made[0]


def kda_in(batch: int) -> Pair:
    """Into KDA. Stock's has the decay gate's second product, which ours makes inside KDA."""
    kernel, ways = projection(*ops.MAPS["kda_in"], batch), _sides(batch)
    size = 2.0 * HIDDEN * ops.MAPS["kda_in"][0] + 2.0 * WIDE * WIDTH
    ours: list[Call] = []
    stock: dict[str, list[Call]] = {name: [] for name in ways}
    for _ in range(ops.sets(size)):
        x, y = ops.random(batch, HIDDEN), ops.random(batch, ops.MAPS["kda_in"][0])
        w = ops.random(*ops.MAPS["kda_in"], scale=HIDDEN**-0.5)
        up = ops.random(WIDE, WIDTH, scale=WIDTH**-0.5)
        ours.append(Bound(kernel, x=x, w=w, y=y))
        for name, side in ways.items():
            stock[name].append(partial(_first_of_project, x, w, up, side))
    return _pair(size, ours, stock)


def _first_of_project(x: Tensor, w: Tensor, up: Tensor, side: Side | None) -> Tensor:
    return project(x, w, up, side)[0]


def heads(batch: int) -> Pair:
    """KDA's core. Stock is given the decay gate's second product."""
    ours: list[Call] = []
    stock: list[Call] = []
    for _ in range(min(ops.MOST_SETS, ops.sets(ops.state_bytes(batch)))):
        layer = ops.Heads(batch)
        packed = layer.fixed["projected"]
        raw = packed[:, 4 * WIDE : 4 * WIDE + WIDTH] @ layer.fixed["decay_up"].t()
        beta = packed[:, 4 * WIDE + WIDTH : 4 * WIDE + WIDTH + HEADS]
        stock.append(partial(StockHeads(layer), packed[:, : 4 * WIDE], raw, beta))
        ours.append(layer.ours())
    return _pair(ops.state_bytes(batch), ours, {"stock": stock})


def attn_res(batch: int) -> Pair:
    """A mix site that adds a delta."""
    ours: list[Call] = []
    stock: list[Call] = []
    for _ in range(ops.MOST_SETS):
        site = ops.Residual(batch)
        stock.append(partial(StockResidual(site), site.delta))
        ours.append(site.ours(SOURCES, "add"))
    return _pair(2.0 * batch * HIDDEN * (SOURCES + 4), ours, {"stock": stock})


def half(batch: int, exchange: bool) -> Pair:
    """Attention half of a KDA layer, layer behind layer."""
    weights = 2.0 * HIDDEN * (ops.MAPS["kda_in"][0] + WIDE)
    site, ways = ops.Residual(batch), _sides(batch)
    others = {name: StockResidual(site) for name in ways}
    kernels = projection(*ops.MAPS["kda_in"], batch), projection(HIDDEN, WIDE, batch)
    delta = site.delta.clone()
    ours: list[Call] = []
    stock: dict[str, list[Call]] = {name: [] for name in ways}
    for _ in range(ops.sets(weights)):
        layer = ops.Heads(batch)
        w_in = ops.random(*ops.MAPS["kda_in"], scale=HIDDEN**-0.5)
        w_out = ops.random(HIDDEN, WIDE, scale=WIDE**-0.5)
        up = layer.fixed["decay_up"]
        for name, side in ways.items():
            core = StockHeads(layer)
            stock[name].append(
                partial(_stock_half, others[name], delta, w_in, up, side, core, w_out)
            )
        mix = site.ours(SOURCES, "add")
        ours += [mix, Bound(kernels[0], x=site.y, w=w_in, y=layer.fixed["projected"]), layer.ours()]
        if exchange:
            ours += site.exchanged(SOURCES, w_out, layer.fixed["y"])
        else:
            ours += [Bound(kernels[1], x=layer.fixed["y"], w=w_out, y=site.delta), mix]

    def same() -> float:
        if exchange:  # the sum of eight times one share is another number than one share
            return float("nan")
        for call in ours[:5]:
            call()
        return max(_distance(site.y, _output(calls[0])) for calls in stock.values())

    moved = weights + ops.state_bytes(batch) + 4.0 * batch * HIDDEN * (SOURCES + 4)
    return Pair(moved, len(ours) // 5, ours, stock, same)


def _stock_half(
    site: StockResidual, delta: Tensor, w_in: Tensor, up: Tensor, side: Side | None,
    core: StockHeads, w_out: Tensor,
) -> Tensor:  # fmt: skip
    mixed, raw, beta = project(site(delta), w_in, up, side)
    return site(product(core(mixed, raw, beta), w_out))


WORKS: dict[str, Callable[[int], Pair]] = {
    "attn_res": attn_res,
    "kda_in": kda_in,
    "kda": heads,
    "out": partial(linear, "out"),
    "mla_in": partial(linear, "mla_in"),
    "q_b": partial(linear, "q_b"),
    "half": partial(half, exchange=False),
    "half+exchange": partial(half, exchange=True),
}


def row(op: str, batch: int, ceiling: float) -> dict[str, Any]:
    """Measure one op."""
    pair = WORKS[op](batch)
    distance = pair.same()
    graphs = {"ours": captured(pair.ours)}
    graphs |= {name: captured(calls) for name, calls in pair.stock.items()}
    medians = {
        name: statistics.median(spans) / pair.layers for name, spans in interleaved(graphs).items()
    }
    best = min(pair.stock, key=lambda name: medians[name])
    return {
        "op": op, "batch": batch, "us": medians["ours"], "stock_us": medians[best], "way": best,
        "times": medians[best] / medians["ours"], "floor_us": pair.bytes_moved / ceiling / 1e6,
        "distance": distance, "all_us": medians,
    }  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--batch", default="1,2,4,8,16,32,64")
    parser.add_argument("--only", default=",".join(WORKS))
    parser.add_argument("--json")
    chosen = parser.parse_args()
    ceiling, name = read_bandwidth(), torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}; reads {ceiling:.2f} TB/s")
    print("op             B  ours us stock us  times floor us distance", flush=True)
    rows = []
    for op in chosen.only.split(","):
        for batch in map(int, chosen.batch.split(",")):
            made = row(op, batch, ceiling)
            rows.append(made)
            torch.cuda.empty_cache()
            print(
                "{op:<14} {batch:>2} {us:>8.2f} {stock_us:>8.2f} {times:>6.2f} {floor_us:>8.2f} "
                "{distance:>8.1e} {way}".format(**made), flush=True,
            )  # fmt: skip
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump({"device": name, "read_tb_s": ceiling, "torch": torch.__version__,
                       "rows": rows}, file, indent=1)  # fmt: skip


if __name__ == "__main__":
    main()
