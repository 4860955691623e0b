"""What a step's graph takes on a GPU, by the device's own clock, beside the host's wall clock.

Events around the replay of a full graph: nothing waits for them, and no gap in which the device
waits for the host lies between them. Steps that replay none are not timed, nor is anything where
there is no GPU or the model runs in other processes. Used by the vLLM child. Works with the model
runner whose graphs belong to `cudagraph_manager`, vLLM's second one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


class Clock:
    """Times the replays of one model runner from now on."""

    def __init__(self, runner: Any, step: Callable[[], int]) -> None:
        """`step`: the index of the engine step that is running."""
        self._spans: list[tuple[int, Any, Any]] = []
        self._spare: list[tuple[Any, Any]] = []
        manager = getattr(runner, "cudagraph_manager", None)
        if manager is None or not torch.cuda.is_available():
            return
        replay = manager.run_fullgraph

        @functools.wraps(replay)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin, end = self._spare.pop() if self._spare else (_event(), _event())
            begin.record()
            result = replay(*args, **kwargs)
            end.record()
            self._spans.append((step(), begin, end))
            return result

        manager.run_fullgraph = timed

    def read(self) -> dict[int, float]:
        """Seconds by step since the last reading; waits for the device if there are any."""
        found: dict[int, float] = {}
        if self._spans:
            torch.cuda.synchronize()
        for at, begin, end in self._spans:
            found[at] = found.get(at, 0.0) + begin.elapsed_time(end) / 1e3
            self._spare.append((begin, end))
        self._spans.clear()
        return found


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)
