"""How the benchmark measures: captured graphs, replayed in turn, weights cold.

Owns: capture, interleaving, the device's own read bandwidth. Does not own: what is launched.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

Call = Callable[[], object]
COLD_BYTES = 1 << 30
"""Weights that one graph walks through: many times the L2 cache."""
ROUNDS = 15
"""Replays of every graph, taken in turn with the others."""


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """One graph of `calls`, each called once before on another stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def interleaved(graphs: Mapping[str, torch.cuda.CUDAGraph]) -> dict[str, list[float]]:
    """Microseconds of every replay; the graphs take turns, so that a drift meets all alike."""
    for graph in graphs.values():
        graph.replay()
    torch.cuda.synchronize()
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            marks[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: [1e3 * start.elapsed_time(end) for start, end in pairs]
        for name, pairs in marks.items()
    }


def read_bandwidth() -> float:
    """TB/s at which this device sums 2 GiB: the ceiling every share refers to."""
    data = torch.empty(1 << 29, dtype=torch.float32, device="cuda").normal_()
    spans = interleaved({"sum": captured([lambda: data.sum()])})["sum"]
    return data.numel() * 4 / statistics.median(spans) / 1e6
