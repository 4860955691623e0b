"""The CUDA form of what the case child asks of a device.

Owns: buffers in device memory, what the profiler says of one call (activities on all streams, those
that start after the call returned), memory traffic beside a call, graph capture. Imported only when
a case lives on CUDA.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_BASE: Any = torch._C.TensorBase
_COPY, _NARROW, _CONTIGUOUS, _CPU, _VIEW, _RESHAPE = (
    _BASE.copy_, _BASE.narrow, _BASE.contiguous, _BASE.cpu, _BASE.view, _BASE.reshape,
)  # fmt: skip
QUIET_S = 0.02
"""After a traced call: how long nothing may start on the device."""
SETTLE_NS = 200_000
"""Clock difference allowed between the profiler's host times and ours."""
L2_BYTES_PER_CLOCK = 64
"""Per multiprocessor. A floor on time may not assume that operands come from device memory."""
FLOPS_PER_CLOCK = 8192
"""Per multiprocessor: above what Hopper's matrix units do in FP8."""
WARM_UPS = 2
TRAFFIC = 2**24
"""Bytes of one disturbing copy."""


class Cuda:
    """Memory and clockwork of the current CUDA device."""

    kind = "cuda"

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()
        self._traffic: list[torch.Tensor] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    def storage(self, nbytes: int) -> torch.Tensor:
        """As the caching allocator aligns, to 512 bytes."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    def write(self, storage: torch.Tensor, at: int, data: bytes) -> None:
        """By methods held since before any case was imported."""
        host = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        _COPY(_NARROW(storage, 0, at, len(data)), host)

    def read(self, tensor: torch.Tensor) -> bytes:
        """On the caller's stream: work that it does not wait for has not happened yet."""
        flat = _RESHAPE(_CONTIGUOUS(_CPU(tensor)), -1)
        return bytes(_VIEW(flat, torch.uint8).numpy().tobytes())

    def synchronise(self) -> None:
        """The caller's stream only, as an engine waits."""
        torch.cuda.current_stream().synchronize()

    @contextmanager
    def window(self, traced: bool) -> Iterator[dict[str, Any]]:
        """Span of the call on its stream; `traced` adds spans and counts over all streams.

        `event_us`: between events around the call. `device_us`: from the first to the last activity
        of any stream. `late`: activities that started after the call had returned.
        """
        seen: dict[str, Any] = {"kind": self.kind}
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        recorder = profile(activities=[ProfilerActivity.CUDA]) if traced else None
        with recorder or nullcontext():
            start.record()
            yield seen
            end.record()
            end.synchronize()
            returned = time.time_ns()
            if recorder is not None:
                time.sleep(QUIET_S)
                torch.cuda.synchronize()
        seen["event_us"] = start.elapsed_time(end) * 1e3
        if recorder is not None:
            seen |= _activities(recorder, returned)

    def disturb(self, level: int) -> None:
        """Copies on a side stream that run beside the next call; level 0 waits for them to end."""
        if not level:
            self._side.synchronize()
            return
        self._traffic = self._traffic or [self.storage(TRAFFIC) for _ in range(2)]
        part = TRAFFIC >> (level % 5)
        with torch.cuda.stream(self._side):
            for _ in range(level % 7):
                _COPY(_NARROW(self._traffic[0], 0, 0, part), _NARROW(self._traffic[1], 0, 0, part))

    def capture(self, call: Callable[[], Any]) -> Any:
        """Capture one call into a graph, after warm-ups; returns what the captured call returned.

        Raises what capturing raises.
        """
        self._graph = None
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = call()
        self._graph = graph
        return made

    def replay(self) -> None:
        """Run the captured call once more, on what its buffers hold now."""
        assert self._graph is not None
        self._graph.replay()

    def limit_memory(self) -> None:
        """Half of what is free on the device now."""
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(max(0.01, free / total / 2))

    def peaks(self) -> tuple[float, float]:
        """From clock and multiprocessors: what the L2 cache and the matrix units could do."""
        about = torch.cuda.get_device_properties()
        clock = 1e3 * float(getattr(about, "clock_rate", 2_000_000))
        each = about.multi_processor_count * clock
        return each * L2_BYTES_PER_CLOCK, each * FLOPS_PER_CLOCK


def _activities(recorder: Any, returned: int) -> dict[str, Any]:
    """Kernels, copies and fills of one trace; `returned` is the host's clock, ns since 1970."""
    events: list[Any] = []
    with suppress(AttributeError):
        events = recorder.profiler.kineto_results.events()
    spans = [
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.device_resource_id())
        for event in events
        if event.device_type() == torch.profiler.DeviceType.CUDA
        and event.duration_ns() > 0
        and not event.is_user_annotation()
        and not event.name().endswith("Sync")
    ]
    if not spans:
        return {"launches": 0, "streams": 0, "device_us": 0.0, "late": 0}
    begin, finish = min(s[0] for s in spans), max(s[1] for s in spans)
    return {
        "launches": len(spans),
        "streams": len({s[2] for s in spans}),
        "device_us": (finish - begin) / 1e3,
        "late": sum(s[0] > returned + SETTLE_NS for s in spans),
    }
