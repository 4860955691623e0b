"""What the case child asks of the device that tensors live on. The seam for accelerators.

Owns the protocol and its CPU form. A CUDA form adds its own `window` (spans of all streams, work
after the return) and gives numbers that the referee records untouched. Imported by the child before
any case is, so that what it captured of torch is torch's own.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

_BASE: Any = torch._C.TensorBase
_POINTER, _STRIDE, _ITEM, _ADDRESS = (
    _BASE.data_ptr, _BASE.stride, _BASE.element_size, ctypes.string_at,
)  # fmt: skip
SPARE_MEMORY_SHARE = 0.5
MOST_MEMORY = 16 * 2**30


class Device(Protocol):
    """One kind of memory and clockwork."""

    kind: str
    """As in `torch.device(...).type`."""

    def storage(self, nbytes: int) -> torch.Tensor:
        """Uninitialised uint8 storage."""
        ...

    def write(self, storage: torch.Tensor, at: int, data: bytes) -> None:
        """Copy bytes to a storage."""
        ...

    def read(self, tensor: torch.Tensor) -> bytes:
        """The elements of a strided tensor, row by row, without the help of its methods."""
        ...

    def synchronise(self) -> None:
        """Wait for work that was started."""
        ...

    def window(self, traced: bool) -> Any:
        """Context manager around the candidate's call; gives a mapping of numbers afterwards.

        `traced` asks for all the device can tell, at the cost of time.
        """
        ...

    def disturb(self, level: int) -> None:
        """Load the device beside the next call; level 0 ends that."""
        ...

    def limit_memory(self) -> None:
        """Bound what this process may take from now on."""
        ...

    def peaks(self) -> tuple[float, float]:
        """(bytes/s, flops/s) that no program on this device can exceed."""
        ...


class Cpu:
    """Host memory."""

    kind = "cpu"

    def storage(self, nbytes: int) -> torch.Tensor:
        """Aligned to 64 bytes, as torch's own tensors are."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def write(self, storage: torch.Tensor, at: int, data: bytes) -> None:
        """By address: a method of tensors may have been replaced."""
        ctypes.memmove(_POINTER(storage) + at, data, len(data))

    def read(self, tensor: torch.Tensor) -> bytes:
        """By address, from the span of bytes that shape and strides reach."""
        shape, strides, item = tuple(tensor.shape), _STRIDE(tensor), _ITEM(tensor)
        if 0 in shape:
            return b""
        span = item * (1 + sum(s * (n - 1) for n, s in zip(shape, strides, strict=True)))
        flat = np.frombuffer(_ADDRESS(_POINTER(tensor), span), np.uint8)
        steps = [s * item for s in strides]
        view = np.lib.stride_tricks.as_strided(flat, (*shape, item), (*steps, 1))
        return view.tobytes()

    def synchronise(self) -> None:
        """Calls on the CPU are done when they return."""

    @contextmanager
    def window(self, traced: bool) -> Iterator[Mapping[str, Any]]:
        """Nothing to see beside the referee's clock."""
        yield {}

    def disturb(self, level: int) -> None:
        """Other threads load the host's memory, see `jitter`."""

    def limit_memory(self) -> None:
        """Half of what is free now, at most 16 GiB, beyond what the process has already.

        Counts private writable memory (RLIMIT_DATA), not reserved address space.
        """
        used = 0
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmData:"):
                    used = int(line.split()[1]) * 1024
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        limit = used + int(min(MOST_MEMORY, SPARE_MEMORY_SHARE * free))
        _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

    def peaks(self) -> tuple[float, float]:
        """Generous: per core two 64-byte loads, and four 64-byte multiply-adds of two-byte
        elements, per cycle at 6 GHz."""
        cores = os.cpu_count() or 1
        return cores * 2 * 64 * 6e9, cores * 4 * 32 * 2 * 6e9


@runtime_checkable
class WithGraphs(Protocol):
    """A device that can record a call and run the record again on new content."""

    def capture(self, call: Callable[[], Any]) -> Any:
        """Record one call; returns what the recorded call returned."""
        ...

    def replay(self) -> None:
        """Run the record once more."""
        ...


def device(kind: str) -> Device:
    """The device of a kind, as in `torch.device(...).type`. Raises ValueError for others."""
    if kind == "cpu":
        return Cpu()
    if kind == "cuda":
        # Not at the top: it must be imported neither before a GPU is known nor on hosts without.
        from fasttrack.correctness.device_cuda import Cuda

        return Cuda()
    raise ValueError(f"no kernel case can be judged on {kind!r}")
