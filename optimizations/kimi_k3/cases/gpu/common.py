"""What the cases of the GPU kernels share.

Owns: batches, BF16 inputs, the form of a case whose arithmetic is `plain`. Read by: the cases.
Operands are BF16 where the kernels read BF16; the truth is FP64 from the same operands, stock is
the same formulas in FP32 with the roundings that stock's kernels make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Regime = Mapping[str, int]
Fault = Callable[[Tensors], Tensors]
Programs = Sequence[Sequence[Callable[[], None]]]
"""What each rank launches, step by step; as many steps for each."""

HIDDEN = 7168
EPS = 1e-5
BATCHES = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)
NAN = float("nan")
CYCLES = 2e9
"""Of a GPU's clock per second, at most: a pause is no shorter than it should be."""


class Arrival(NamedTuple):
    """One launch: step of a rank, and how long the device pauses ahead of it."""

    rank: int
    step: int
    pause_s: float


def generator(seed: int, regime: Regime) -> torch.Generator:
    """A stream of its own for every cell."""
    mixed = seed
    for value in regime.values():
        mixed = mixed * 1009 + value + 1
    return torch.Generator().manual_seed(mixed % (1 << 62))


def normal(random: torch.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    """Gaussian numbers, BF16."""
    return (scale * torch.randn(*shape, generator=random)).bfloat16()


def filled(tensor: Tensor, seed: int) -> Tensor:
    """Finite numbers in place of NaN."""
    random = torch.Generator().manual_seed(seed)
    other = (10 * torch.randn(tensor.shape, generator=random)).to(tensor)
    return torch.where(tensor.isnan(), other, tensor)


class GpuCase:
    """A case on CUDA whose arithmetic is `plain`, in whatever dtype it is told."""

    device = "cuda"
    op: str
    left_out: Sequence[str] = ()
    """Globs over cell names: see `claimed` of this package."""
    outputs: Mapping[str, tuple[str, ...]]
    input_rows: Mapping[str, int]
    output_rows: Mapping[str, int]
    planting: Mapping[str, Fault] = {}

    def every(self) -> Sequence[Regime]:
        """All regimes there are."""
        raise NotImplementedError

    def regimes(self) -> Sequence[Regime]:
        """Those to be measured."""
        cells = [(one, "/".join(f"{k}={v}" for k, v in one.items())) for one in self.every()]
        return [one for one, name in cells if not any(fnmatch(name, g) for g in self.left_out)]

    def plain(self, inputs: Tensors, dtype: torch.dtype) -> Tensors:
        """Outputs with sums in `dtype`; rounded as stock rounds unless that is FP64."""
        raise NotImplementedError

    def reference(self, inputs: Tensors) -> Tensors:
        """FP64, never rounded."""
        return self.plain(inputs, torch.float64)

    def stock(self, inputs: Tensors) -> Tensors:
        """FP32 sums, BF16 between operators."""
        return self.plain(inputs, torch.float32)

    def stock_variant(self, inputs: Tensors) -> Tensors:
        """Every row twice: sums of more rows are cut another way."""
        twice = {
            name: torch.cat((tensor, tensor), dim=self.input_rows[name])
            if name in self.input_rows
            else tensor
            for name, tensor in inputs.items()
        }
        made = self.plain(twice, torch.float32)
        for name, axis in self.output_rows.items():
            made[name] = made[name].narrow(axis, 0, made[name].shape[axis] // 2).contiguous()
        return made

    def faults(self, regime: Regime) -> Sequence[str]:
        """Names of `planting`."""
        return list(self.planting)

    def planted(self, fault: str, inputs: Tensors) -> Tensors:
        """Stock's arithmetic with one fault."""
        return self.stock(self.planting[fault](inputs))


def kept(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` as a result that stock keeps in BF16, unless the truth is asked for."""
    return tensor if dtype == torch.float64 else tensor.bfloat16()


def launched(kernel: Any, tensors: Tensors) -> Tensors:
    """Run a kernel once on the current stream."""
    from kimi_k3.kernels.gpu import Bound

    Bound(kernel, **tensors)()
    return tensors


def in_turn(programs: Programs) -> None:
    """One GPU plays all ranks: a step of every rank, then the next step."""
    for step in zip(*programs, strict=True):
        for launch in step:
            launch()


def arrivals(delays_s: Sequence[float], start: int, end: int) -> list[Arrival]:
    """In which order the ranks' steps `start` to `end` are launched, the last of which waits for
    other ranks: the early rank's, the others' in turn, each late, and then every wait.

    So no wait is launched ahead of what it waits for, and the device may take launches in their
    order, from however many streams. The early rank still waits in its kernel, because what makes
    the others late are pauses on the device, far longer than the launches take.
    """
    first, *others = sorted(range(len(delays_s)), key=delays_s.__getitem__)
    made = [Arrival(first, step, 0.0) for step in range(start, end - 1)]
    for step in range(start, end - 1):
        for before, rank in pairwise((first, *others)):
            made.append(Arrival(rank, step, delays_s[rank] - delays_s[before]))
    return [*made, *(Arrival(rank, end - 1, 0.0) for rank in (first, *others))]


def late(programs: Programs, delays_s: Sequence[float], waits: Sequence[int]) -> None:
    """The same, rank i `delays_s[i]` late with every step (numbers from the first again where they
    are too few), but for what is behind the last of `waits`, each one more than the number of a
    step that waits for other ranks.

    The early rank has a stream of its own and goes up to the next wait, no further: blocks of a
    kernel behind it would lie there, with nothing to do, in the others' room. Not every rank waits
    in a kernel, for the same reason. A case names in `waits` only steps whose blocks leave room.
    """
    delays = [delays_s[rank % len(delays_s)] for rank in range(len(programs))]
    main, early = torch.cuda.current_stream(), torch.cuda.Stream()
    for start, end in pairwise((0, *waits)):
        early.wait_stream(main)
        order = arrivals(delays, start, end)
        for rank, step, pause_s in order:
            with torch.cuda.stream(early if rank == order[0].rank else main):
                if pause_s > 0:
                    torch.cuda._sleep(int(pause_s * CYCLES))
                programs[rank][step]()
        main.wait_stream(early)
    in_turn([program[waits[-1] :] for program in programs])
