"""`python -m kimi_k3.bench.exchange [--batch 1,8,64] [--json FILE]`: the exchange between GPUs.

One process per GPU. First whether it is right: batches in changing order, ranks late at random, the
bits of every rank against those of all ranks played by one GPU. Then microseconds of output
projection, sum over ranks and mix site, in graphs of cold weights that take turns: ours, and cuBLAS
with an all-reduce by NCCL and by torch's symmetric memory, both followed by our own mix site.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.multiprocessing.spawn import spawn

from kimi_k3.bench import ops
from kimi_k3.bench.timing import Call, captured, interleaved
from kimi_k3.kernels.attn_res.kernel import AttnRes, Site
from kimi_k3.kernels.gpu import Bound
from kimi_k3.kernels.oproj.form import Exchange
from kimi_k3.kernels.oproj.launch import collect, publish
from kimi_k3.kernels.oproj.mailbox import End, loop_back, symmetric

BLOCKS, SOURCES = 8, 4
LATEST_CYCLES = 4_000_000
"""Two milliseconds or so: far longer than any launch."""


class Rank:
    """One rank's operands, equal on every process for equal `seed` but for x and w."""

    def __init__(self, batch: int, rank: int, seed: int) -> None:
        def made(which: int, *shape: int, scale: float = 1.0) -> Tensor:
            maker = torch.Generator("cuda").manual_seed(seed * 1000 + which)
            return scale * torch.randn(*shape, device="cuda", generator=maker)

        hidden, wide = ops.HIDDEN, ops.WIDE
        self.x = made(10 + rank, batch, wide).bfloat16()
        self.w = made(100 + rank, hidden, wide, scale=wide**-0.5).bfloat16()
        self.prefix = made(1, batch, hidden).bfloat16()
        self.bank = made(2, batch, BLOCKS, hidden).bfloat16()
        self.score, self.gain = made(3, hidden, scale=hidden**-0.5), made(4, hidden)
        self.y, self.delta = torch.empty_like(self.prefix), torch.empty_like(self.prefix)
        self.site = Site(hidden, batch, BLOCKS, SOURCES, "add", False, ops.EPS)

    def calls(self, end: End) -> list[Bound]:
        """Both launches."""
        parts = {name: getattr(self, name) for name in ("prefix", "bank", "score", "gain", "y")}
        return [
            Bound(publish(ops.WIDE, len(self.x), end.exchange), x=self.x, w=self.w,
                  peers=end.peers, turn=end.turn),
            Bound(collect(self.site, end.exchange), mailbox=end.mailbox, turn=end.turn, **parts),
        ]  # fmt: skip

    def residual(self, delta: Tensor) -> Bound:
        """Our mix site behind somebody else's sum."""
        parts = {name: getattr(self, name) for name in ("prefix", "bank", "score", "gain", "y")}
        return Bound(AttnRes(self.site), delta=delta, **parts)


def right(end: End, rank: int, rounds: int) -> int:
    """Exchanges whose bits differ from those of one GPU that plays all ranks."""
    exchange = end.exchange
    ends = loop_back(exchange)
    draw, wrong = random.Random(7), 0
    late = random.Random(rank)
    for seed in range(rounds):
        batch = draw.choice([1, 2, 3, 8, 9, 16, 17, 33, 64])
        players = [Rank(batch, one, seed) for one in range(exchange.ranks)]
        alone = [player.calls(own) for player, own in zip(players, ends, strict=True)]
        for stage in (0, 1):
            for player_calls in alone:
                player_calls[stage]()
        wanted = players[rank].y.clone(), players[rank].prefix.clone()
        mine = Rank(batch, rank, seed)
        send, take = mine.calls(end)
        torch.cuda._sleep(late.randrange(LATEST_CYCLES))
        send()
        torch.cuda._sleep(late.randrange(LATEST_CYCLES) if seed % 3 == 0 else 1)
        take()
        found = mine.y, mine.prefix
        wrong += not all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    end.check()
    return wrong


def spans(end: End, rank: int, batch: int) -> dict[str, float]:
    """Microseconds per layer of each way, the slower rank's."""
    group = dist.group.WORLD
    assert group is not None
    shape = batch, ops.HIDDEN
    shared = symmetric_memory.empty(
        shape, dtype=torch.bfloat16, device=torch.device("cuda", torch.cuda.current_device())
    )
    symmetric_memory.rendezvous(shared, group)
    layers = [Rank(batch, rank, seed) for seed in range(ops.MOST_SETS)]
    ways: dict[str, list[Call]] = {"ours": [], "gemm": [], "nccl": [], "one_shot": []}
    for one in layers:
        ways["ours"] += one.calls(end)
        product = _product(one, one.delta)
        ways["gemm"] += [product, one.residual(one.delta)]
        ways["nccl"] += [product, _nccl(one.delta), one.residual(one.delta)]
        ways["one_shot"] += [
            _product(one, shared), _one_shot(shared, one.delta, group.group_name),
            one.residual(one.delta),
        ]  # fmt: skip
    graphs = {name: captured(calls) for name, calls in ways.items()}
    torch.cuda.synchronize()
    dist.barrier()
    found = interleaved(graphs)
    end.check()
    medians = [statistics.median(found[name]) / len(layers) for name in ways]
    slowest = torch.tensor(medians, device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return dict(zip(ways, slowest.tolist(), strict=True))


def _product(one: Rank, out: Tensor) -> Call:
    return lambda: torch.mm(one.x, one.w.t(), out=out)


def _nccl(delta: Tensor) -> Call:
    return lambda: dist.all_reduce(delta)


def _one_shot(shared: Tensor, out: Tensor, group: str) -> Call:
    run = torch.ops.symm_mem.one_shot_all_reduce_out
    return lambda: run(shared, "sum", group, out)


def work(rank: int, ranks: int, store: str, chosen: argparse.Namespace) -> None:
    """One process."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=ranks,
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    group = dist.group.WORLD
    assert group is not None
    end = symmetric(Exchange(ranks, ops.HIDDEN, ops.CAPACITY), group)
    wrong = torch.tensor(right(end, rank, chosen.rounds), device="cuda")
    dist.all_reduce(wrong)
    rows: list[dict[str, Any]] = []
    if rank == 0:
        print(f"{ranks} x {torch.cuda.get_device_name()}, torch {torch.__version__}")
        print(f"{chosen.rounds} exchanges under skew: {int(wrong)} results differ", flush=True)
        print("B   ours us  cuBLAS alone  + NCCL  + one-shot  x NCCL  x one-shot", flush=True)
    for batch in map(int, chosen.batch.split(",")):
        row = spans(end, rank, batch)
        rows.append({"batch": batch, **row})
        if rank == 0:
            print(
                f"{batch:<3} {row['ours']:>7.2f} {row['gemm']:>13.2f} {row['nccl']:>7.2f} "
                f"{row['one_shot']:>11.2f} {row['nccl'] / row['ours']:>7.2f} "
                f"{row['one_shot'] / row['ours']:>11.2f}", flush=True,
            )  # fmt: skip
    if rank == 0 and chosen.json:
        with open(chosen.json, "w") as file:
            json.dump({"ranks": ranks, "wrong": int(wrong), "rounds": chosen.rounds,
                       "rows": rows}, file, indent=1)  # fmt: skip
    torch.cuda.synchronize()
    dist.barrier()
    # Graphs that hold NCCL's kernels outlive the group otherwise, and their end hangs.
    os._exit(0)


def main() -> None:
    """Start one process per GPU."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--batch", default="1,2,4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json")
    ranks = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ranks, os.path.join(folder, "store"), parser.parse_args()
        spawn(work, arguments, nprocs=ranks)


if __name__ == "__main__":
    main()
