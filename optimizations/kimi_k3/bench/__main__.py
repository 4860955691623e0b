"""`python -m kimi_k3.bench [--batch 1,8,64] [--only half,mla_value] [--json FILE]`: a table of ops.

Microseconds are medians over replays of a graph that walks through more than a gigabyte of weights
or states; ours and torch's graphs take turns. `floor` is the least bytes at the bandwidth at which
this device sums 2 GiB, measured in the same run; `spread` the distance between the 10th and 90th
percentile of our replays.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kimi_k3.bench import layer, mla, moe, ops
from kimi_k3.bench.timing import captured, interleaved, read_bandwidth

SOURCES = 4
"""Stored blocks of a mix site: the mean over K3's layers is 4.4."""
WORKS: dict[str, Callable[[int], ops.Work]] = {
    "attn_res": lambda batch: ops.attn_res(batch, SOURCES),
    **{name: partial(ops.linear, name) for name in ops.MAPS},
    "kda": ops.heads,
    "oproj": lambda batch: ops.oproj(batch, SOURCES),
    "half": lambda batch: ops.half(batch, SOURCES),
    "mla_query": mla.query,
    **{f"mla_core.{c}": partial(mla.core, c, False) for c in mla.CONTEXTS},
    **{f"mla_core_fp8.{c}": partial(mla.core, c, True) for c in mla.CONTEXTS},
    "mla_value": mla.value,
    **{f"mla_half.{c}": partial(mla.half, c, SOURCES) for c in mla.CONTEXTS},
    "mla_half_fp8.4096": partial(mla.half, 4096, SOURCES, fp8=True),
    "mla_half_ahead.4096": partial(mla.half, 4096, SOURCES, ahead=True),
    "moe_front": moe.front,
    "experts": moe.experts,
    "experts.alone": partial(moe.experts, summed=False),
    "experts.in_place": partial(moe.experts, in_place=True),
    "moe_tail": lambda batch: moe.tail(batch, SOURCES),
    "layer": lambda batch: layer.layers(batch, SOURCES),
    "layer.kept": lambda batch: layer.layers(batch, SOURCES, in_place=False),
    "layer.attention": lambda batch: layer.layers(batch, SOURCES, "a"),
    "layer.mixture": lambda batch: layer.layers(batch, SOURCES, "m"),
    "half.alone": lambda batch: ops.half(batch, SOURCES, exchange=False),
}


def row(work: ops.Work, ceiling: float) -> dict[str, Any]:
    """Measure one op."""
    calls = {"ours": work.ours} | ({"torch": work.torch} if work.torch else {})
    spans = interleaved({name: captured(made) for name, made in calls.items()})
    ours = sorted(spans["ours"])
    count = work.times or len(work.ours) // int(work.launches)
    mine = statistics.median(ours) / count
    floor = work.bytes_moved / ceiling / 1e6
    return {
        "op": work.name, "batch": work.batch, "us": mine,
        "spread": (ours[len(ours) * 9 // 10] - ours[len(ours) // 10]) / count,
        "torch_us": statistics.median(spans["torch"]) / count if work.torch else float("nan"),
        "tb_s": work.bytes_moved / mine / 1e6, "floor_us": floor, "share": floor / mine,
        "launches": round(work.launches, 1),
    }  # fmt: skip


def main() -> None:
    """Print the table and the machine."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--batch", default="1,2,8,16,64")
    parser.add_argument("--only", default=",".join(WORKS))
    parser.add_argument("--json")
    chosen = parser.parse_args()
    ceiling = read_bandwidth()
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}; reads {ceiling:.2f} TB/s")
    print("op                 B      us spread torch us   TB/s floor us share launches", flush=True)
    rows = []
    for op in chosen.only.split(","):
        for batch in map(int, chosen.batch.split(",")):
            made = row(WORKS[op](batch), ceiling)
            rows.append(made)
            torch.cuda.empty_cache()
            torch.compiler.reset()  # or torch's own would give up compiling after some shapes
            print(
                "{op:<18} {batch:>2} {us:>7.2f} {spread:>6.2f} {torch_us:>8.2f} {tb_s:>6.2f} "
                "{floor_us:>8.2f} {share:>5.0%} {launches:>8}".format(**made), flush=True,
            )  # fmt: skip
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump({"device": name, "read_tb_s": ceiling,
                       "torch": torch.__version__, "rows": rows}, file, indent=1)  # fmt: skip


if __name__ == "__main__":
    main()
