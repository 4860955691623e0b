"""The audit's run-time variant: a slow producer over poisoned activations, and who reads too early.

`python -m fasttrack.audit.runtime` on a CUDA host of compute capability 9.0 or 10.x, with torch and
CuTe DSL. Activations are filled with NaN; a producer lets its dependents start, sleeps, and writes
ones; behind it, launched as its dependent, runs a planted consumer. The one that loads before the
wait must compute from the poison, the one that loads behind it must not: the first shows that the
kernels do overlap here, the second that the wait orders them. Prints one JSON object; exit status 0
when both hold in every round, 1 when not, 4 without a device. Judges no optimization's kernel: it
backs the premise on which `rules.hoist` judges them all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.arch import inline_ptx
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor

from fasttrack.audit import plants

CONSUMERS = {"early_load": True, "late_load": False}
"""Planted consumers, and whether the poison must show in what they write."""
DELAY_NS = 2_000_000
"""How long the producer sleeps: far longer than a launch takes, far shorter than anyone waits."""
WEIGHT = 3.0


@cute.kernel
def _slow_producer(x: cute.Tensor, delay_ns: Int64) -> None:
    """x [n] float32: lets dependents start, sleeps for `delay_ns`, then writes ones."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_launch_dependents()
    start = cute.arch.globaltimer()
    while cute.arch.globaltimer() - start < delay_ns:
        inline_ptx("nanosleep.u32 100000;")
    x[block * plants.THREADS + thread] = cutlass.Float32(1.0)


@cute.jit
def _launch(
    x: cute.Tensor,
    w: cute.Tensor,
    y: cute.Tensor,
    delay_ns: Int64,
    stream: cuda.CUstream,
    early: cutlass.Constexpr,
) -> None:
    """Producer in stream order, consumer as its dependent."""
    shape = ((plants.BLOCKS, 1, 1), (plants.THREADS, 1, 1))
    _slow_producer(x, delay_ns).launch(grid=shape[0], block=shape[1], stream=stream)
    if cutlass.const_expr(early):
        consumer = plants._early_load(x, w, y)
    else:
        consumer = plants._late_load(x, w, y)
    consumer.launch(grid=shape[0], block=shape[1], stream=stream, use_pdl=True)


def compiled(early: bool) -> Any:
    """Producer and one consumer, for the device of this process or for $CUTE_DSL_ARCH."""
    vectors = [
        make_fake_compact_tensor(cutlass.Float32, (plants.BLOCKS * plants.THREADS,))
        for _ in range(3)
    ]
    return cute.compile(_launch, *vectors, Int64(DELAY_NS), cuda.CUstream(0), early)


def poisoned(launch: Callable[..., None], delay_ns: int) -> int:
    """One round: how many outputs the consumer computed from the poison.

    Raises `RuntimeError` when the producer did not run or an output is neither product nor NaN.
    """
    import torch

    count = plants.BLOCKS * plants.THREADS
    x = torch.full((count,), float("nan"), device="cuda")
    w = torch.full((count,), WEIGHT, device="cuda")
    y = torch.zeros((count,), device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    arrays = (from_dlpack(x), from_dlpack(w), from_dlpack(y))
    launch(*arrays, Int64(delay_ns), cuda.CUstream(stream.cuda_stream))
    stream.synchronize()
    if not bool((x == 1.0).all()):
        raise RuntimeError("the producer did not write its activations")
    wrong = int(torch.isnan(y).sum())
    right = int((y == WEIGHT).sum())
    if wrong + right != count:
        raise RuntimeError(f"{count - wrong - right} outputs are neither the product nor NaN")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Run every consumer for some rounds; see the module for what is printed and returned."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--delay-ns", type=int, default=DELAY_NS)
    chosen = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        print("no CUDA device of compute capability 9.0 or later", file=sys.stderr)
        return 4
    found: dict[str, Any] = {}
    for name, expected in CONSUMERS.items():
        launch = compiled(early=expected)
        rounds = [poisoned(launch, chosen.delay_ns) for _ in range(chosen.rounds)]
        held = all(rounds) if expected else not any(rounds)
        found[name] = {"poisoned_outputs": rounds, "as_expected": held}
    right = all(each["as_expected"] for each in found.values())
    device = torch.cuda.get_device_name()
    outputs = plants.BLOCKS * plants.THREADS
    print(json.dumps({"device": device, "outputs": outputs, "consumers": found, "right": right}))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
