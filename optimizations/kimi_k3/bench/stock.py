"""`python -m kimi_k3.bench.stock [--batch 1,8,64] [--json FILE]`: beside vLLM 0.33's own kernels.

Needs vLLM 0.33.0 in the same environment. Stock is what its Kimi K3 launches at these shapes on
this device, chosen by its own tables: skinny GEMMs or cuBLAS, the split input projection with its
side stream, the fused KDA kernel, AttnRes. One rank of eight, so both sides leave the sum over
ranks out; `half+exchange` is ours with it, in loop-back, against stock without.

Graphs take turns in one run, weights and states cold. The outputs of both are compared first, so
that the same work is timed.
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
    count: int
    ours: list[Call]
    stock: list[Call]
    same: Callable[[], float]
    """Distance of the two outputs over their size, after one call of each."""


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


def project(x: Tensor, w: Tensor, up: Tensor, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Into KDA: q, k, v and gate [B, 4 * 1536], raw decay [B, 1536], beta [B, 12]."""
    if len(x) <= gemm.KDA_PROJECTION_OVERLAP_MAX_TOKENS:
        made = gemm.run_kda_projection_overlap(x, w, up, side.stream, side.events)
        return tuple(made)  # type: ignore[return-value]
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


def linear(name: str, batch: int) -> Pair:
    """A packed map without a side stream of stock's."""
    outputs, inputs = ops.MAPS[name]
    size = 2.0 * outputs * inputs
    kernel = projection(outputs, inputs, batch)
    ours: list[Call] = []
    stock: list[Call] = []
    for _ in range(ops._sets(size)):
        x = ops._random(batch, inputs)
        w = ops._random(outputs, inputs, scale=inputs**-0.5)
        y = x.new_empty(batch, outputs)
        ours.append(Bound(kernel, x=x, w=w, y=y))
        stock.append(_gated(x, w) if name == "mla_in" else partial(product, x, w))
    if name == "mla_in":
        made = stock[0]
        return Pair(
            size, len(ours), ours, stock, lambda: _distance(y0(ours[0]), torch.cat(made(), dim=-1))
        )  # type: ignore
    return Pair(size, len(ours), ours, stock,
                lambda: _distance(y0(ours[0]), stock[0]()))  # type: ignore  # fmt: skip


def y0(call: Call) -> Tensor:
    """Output of one of our launches."""
    call()
    return call.tensors["y"]  # type: ignore[attr-defined]


def _gated(x: Tensor, w: Tensor) -> Call:
    """Stock's two products of an MLA layer, one on the side stream."""
    side = Side()
    return lambda: maybe_execute_in_parallel(
        lambda: product(x, w[:LATENT]), lambda: product(x, w[LATENT:]), *side.events, side.stream
    )


def kda_in(batch: int) -> Pair:
    """Into KDA. Stock's has the decay gate's second product, which ours makes inside KDA."""
    size = 2.0 * HIDDEN * ops.MAPS["kda_in"][0] + 2.0 * WIDE * WIDTH
    kernel = projection(*ops.MAPS["kda_in"], batch)
    ours: list[Call] = []
    stock: list[Call] = []
    for _ in range(ops._sets(size)):
        x, y = ops._random(batch, HIDDEN), ops._random(batch, ops.MAPS["kda_in"][0])
        w = ops._random(*ops.MAPS["kda_in"], scale=HIDDEN**-0.5)
        up = ops._random(WIDE, WIDTH, scale=WIDTH**-0.5)
        ours.append(Bound(kernel, x=x, w=w, y=y))
        stock.append(partial(project, x, w, up, Side()))
    return Pair(
        size, len(ours), ours, stock,
        lambda: _distance(y0(ours[0])[:, : 4 * WIDE], stock[0]()[0]),  # type: ignore
    )  # fmt: skip


def heads(batch: int) -> Pair:
    """KDA's core. Stock gets the decay gate's second product made."""
    ours: list[Call] = []
    stock: list[Call] = []
    for _ in range(min(ops.MOST_SETS, ops._sets(ops._state_bytes(batch)))):
        layer = ops.Heads(batch)
        ours.append(layer.ours())
        packed = layer.fixed["projected"]
        raw = packed[:, 4 * WIDE : 4 * WIDE + WIDTH] @ layer.fixed["decay_up"].t()
        beta = packed[:, 4 * WIDE + WIDTH : 4 * WIDE + WIDTH + HEADS]
        stock.append(partial(StockHeads(layer), packed[:, : 4 * WIDE], raw, beta))
    return Pair(ops._state_bytes(batch), len(ours), ours, stock,
                lambda: _distance(y0(ours[0]), stock[0]()))  # type: ignore  # fmt: skip


def attn_res(batch: int) -> Pair:
    """A mix site that adds a delta."""
    ours: list[Call] = []
    stock: list[Call] = []
    for _ in range(ops.MOST_SETS):
        site = ops.Residual(batch)
        other = StockResidual(site)
        ours.append(site.ours(SOURCES, "add"))
        stock.append(partial(other, site.delta))
    return Pair(2.0 * batch * HIDDEN * (SOURCES + 4), len(ours), ours, stock,
                lambda: _distance(y0(ours[0]), stock[0]()))  # type: ignore  # fmt: skip


def half(batch: int, exchange: bool) -> Pair:
    """Attention half of a KDA layer, layer behind layer."""
    work_bytes = 2.0 * HIDDEN * (ops.pitch(HEADS) + WIDE) + ops._state_bytes(batch)
    site, side = ops.Residual(batch), Side()
    other = StockResidual(site)
    kernels = projection(*ops.MAPS["kda_in"], batch), projection(HIDDEN, WIDE, batch)
    delta = site.delta.clone()
    ours: list[Call] = []
    stock: list[Call] = []
    count = ops._sets(2.0 * HIDDEN * (ops.pitch(HEADS) + WIDE))
    for _ in range(count):
        layer = ops.Heads(batch)
        w_in = ops._random(*ops.MAPS["kda_in"], scale=HIDDEN**-0.5)
        w_out = ops._random(HIDDEN, WIDE, scale=WIDE**-0.5)
        mix = site.ours(SOURCES, "add")
        ours += [mix, Bound(kernels[0], x=site.y, w=w_in, y=layer.fixed["projected"]), layer.ours()]
        if exchange:
            ours += site.exchanged(SOURCES, w_out, layer.fixed["y"])
        else:
            ours += [Bound(kernels[1], x=layer.fixed["y"], w=w_out, y=site.delta), mix]
        core = StockHeads(layer)
        up = layer.fixed["decay_up"]
        stock.append(partial(_stock_half, other, delta, w_in, up, side, core, w_out))
    return Pair(work_bytes, count, ours, stock, partial(_half_distance, ours, stock, site, delta,
                                                        exchange))  # fmt: skip


def _stock_half(
    site: StockResidual, delta: Tensor, w_in: Tensor, up: Tensor, side: Side, core: StockHeads,
    w_out: Tensor,
) -> Tensor:  # fmt: skip
    mixed, raw, beta = project(site(delta), w_in, up, side)
    return site(product(core(mixed, raw, beta), w_out))


def _half_distance(
    ours: list[Call], stock: list[Call], site: ops.Residual, delta: Tensor, exchange: bool
) -> float:
    if exchange:  # eight ranks' sum of one share: another number than one rank's
        return float("nan")
    site.delta.copy_(delta)
    for call in ours[:5]:
        call()
    return _distance(site.y, stock[0]())  # type: ignore[arg-type]


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
    rows: list[dict[str, Any]] = []
    for op in chosen.only.split(","):
        for batch in map(int, chosen.batch.split(",")):
            pair = WORKS[op](batch)
            distance = pair.same()
            found = interleaved({"ours": captured(pair.ours), "stock": captured(pair.stock)})
            mine, theirs = (statistics.median(found[n]) / pair.count for n in ("ours", "stock"))
            floor = pair.bytes_moved / ceiling / 1e6
            rows.append({"op": op, "batch": batch, "us": mine, "stock_us": theirs,
                         "floor_us": floor, "distance": distance})  # fmt: skip
            torch.cuda.empty_cache()
            print(f"{op:<14} {batch:>2} {mine:>8.2f} {theirs:>8.2f} {theirs / mine:>6.2f} "
                  f"{floor:>8.2f} {distance:>8.1e}", flush=True)  # fmt: skip
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump({"device": name, "read_tb_s": ceiling, "torch": torch.__version__,
                       "rows": rows}, file, indent=1)  # fmt: skip


if __name__ == "__main__":
    main()
