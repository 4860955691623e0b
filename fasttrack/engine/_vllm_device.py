"""What a step's graph takes on a GPU, by the device's own clock, beside the host's wall clock.

Events around the replay of a full graph: nothing waits for them, and no gap in which the device
waits for the host lies between them. Steps that replay none are not timed, nor is anything where
there is no GPU. Used by the vLLM child, which has `install` and `read` called in each rank's
process by vLLM's `collective_rpc`, be it its own process or another. Works with the model runner
whose graphs belong to `cudagraph_manager`, vLLM's second one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Clock:
    """Times the replays of one model runner from now on.

    It counts the runner's steps itself: where the model runs in another process nobody there knows
    which step the engine is at. Steps arrive in the order they were scheduled, so the n-th since
    the last reading is the n-th that the scheduler put tokens into since then.
    """

    def __init__(self, runner: Any) -> None:
        self._step = -1
        self._spans: list[tuple[int, Any, Any]] = []
        self._spare: list[tuple[Any, Any]] = []
        manager = getattr(runner, "cudagraph_manager", None)
        if manager is None or not torch.cuda.is_available():
            return
        runner.execute_model = self._counted(runner.execute_model)
        manager.run_fullgraph = self._timed(manager.run_fullgraph)

    def _counted(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(execute)
        def counted(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            self._step += bool(scheduled.total_num_scheduled_tokens)
            return execute(scheduled, *args, **kwargs)

        return counted

    def _timed(self, replay: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(replay)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin, end = self._spare.pop() if self._spare else (_event(), _event())
            begin.record()
            result = replay(*args, **kwargs)
            end.record()
            self._spans.append((self._step, begin, end))
            return result

        return timed

    def read(self) -> dict[int, float]:
        """Seconds by step since the last reading; waits for the device if there are any."""
        found: dict[int, float] = {}
        if self._spans:
            torch.cuda.synchronize()
        for at, begin, end in self._spans:
            found[at] = found.get(at, 0.0) + begin.elapsed_time(end) / 1e3
            self._spare.append((begin, end))
        self._spans.clear()
        self._step = -1
        return found


def install(worker: Any) -> None:
    """Time the graphs of this rank's worker."""
    worker.fasttrack_clock = Clock(worker.model_runner)


def read(worker: Any) -> dict[int, float]:
    """See `Clock.read`."""
    found: dict[int, float] = worker.fasttrack_clock.read()
    return found


def together(ranks: Sequence[dict[int, float]]) -> dict[int, float]:
    """Of each step that all ranks timed, the shortest time: that of the rank which began last. A
    graph with sums in it ends on all ranks at once, and the others' times hold their wait for it,
    which is the host's."""
    steps = set.intersection(*map(set, ranks))
    return {step: min(rank[step] for rank in ranks) for step in sorted(steps)}


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)
