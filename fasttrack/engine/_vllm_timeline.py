"""What ran when in a decode step of a vLLM engine, and in which decoder layer.

Owns the profiler around a step, and what tells layers apart: hooks on the model's own layers, which
see nothing of a path that does not call them or of a graph's replay. On a GPU its kernels are
spans; on a CPU the operators that no other operator called, and AOTInductor's units, which call
none and would not show: `name_units` wraps their loader for that. Used by the vLLM child in the
path stage. Works where the model runs in this process (one rank); tried with vLLM 0.32.0 on a CPU.
"""

from __future__ import annotations

import functools
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from fasttrack.schema import Timeline

LAYER = "fasttrack::layer/"
UNIT = "compiled::"
WARM_UP_STEPS = 3
PLAIN_STEPS = 5
DISCARDED_STEPS = 2
"""Profiled, but not kept: the first ones pay for the profiler's own start."""
PROFILED_STEPS = 5
MOST_SPANS = 20_000
CLOCK = time.perf_counter
Span = tuple[str, float, float, int, int | None]
"""Name, start and duration in microseconds, stream, decoder layer."""
_naming = False
"""Whether compiled units are named now."""


def name_units() -> None:
    """Let AOTInductor's packages show in a timeline, by the name of their file without its digest.

    Before anything loads one; without effect outside `Recorder.watching`.
    """
    loader: Any = torch._C._aoti.AOTIModelPackageLoader
    names: dict[int, str] = {}
    made = loader.__init__

    @functools.wraps(made)
    def init(self: Any, path: str, *args: Any, **kwargs: Any) -> None:
        made(self, path, *args, **kwargs)
        stem = Path(path).stem
        names[id(self)] = stem.rpartition("-")[0] or stem

    def named(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _naming:
                return call(self, *args, **kwargs)
            with record_function(UNIT + names.get(id(self), "unit")):
                return call(self, *args, **kwargs)

        return run

    loader.__init__ = init
    loader.run, loader.boxed_run = named(loader.run), named(loader.boxed_run)


class Recorder:
    """Times a few steady decode steps of one call: some plain ones, then some profiled ones."""

    def __init__(self, runner: Any, scheduled: Sequence[tuple[int, int]]) -> None:
        """`scheduled`: (decode, prefill) tokens of the call's steps, which the caller adds to."""
        config = runner.vllm_config
        count = config.model_config.get_num_layers(config.parallel_config)
        self._kinds = kinds(runner.kv_cache_config.kv_cache_groups, count)
        self._layers = decoder_layers(runner.model, count)
        self._scheduled = scheduled
        self._pure = 0
        self._plain: list[float] = []
        self._profiled: list[list[Span]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Layers and compiled units tell where they begin and end."""
        global _naming
        with ExitStack() as stack:
            for index, layer in enumerate(self._layers):
                for handle in hooks(layer, LAYER + str(index)):
                    stack.callback(handle.remove)
            _naming = True
            try:
                yield
            finally:
                _naming = False

    def step(self, run: Callable[[], Any]) -> Any:
        """Run one engine step, and keep what a timeline needs of it."""
        before = len(self._scheduled)
        kept = self._pure - WARM_UP_STEPS
        if PLAIN_STEPS <= kept < PLAIN_STEPS + DISCARDED_STEPS + PROFILED_STEPS:
            result, found = profiled(run)
            if self._is_pure(before) and kept >= PLAIN_STEPS + DISCARDED_STEPS:
                self._profiled.append(found)
            return result
        start = CLOCK()
        result = run()
        _wait()
        took = (CLOCK() - start) * 1e6
        if self._is_pure(before) and 0 <= kept < PLAIN_STEPS:
            self._plain.append(took)
        return result

    def _is_pure(self, before: int) -> bool:
        """Whether the steps that were scheduled since decode, and only that; counts them."""
        new = self._scheduled[before:]
        pure = bool(new) and all(decode and not prefill for decode, prefill in new)
        self._pure += pure
        return pure

    def seen(self) -> Timeline | None:
        """The typical profiled step: of the median length; None without one."""
        told = [spans for spans in self._profiled if 0 < len(spans) <= MOST_SPANS]
        if not told:
            return None
        chosen = sorted(told, key=_length)[len(told) // 2]
        names = list(dict.fromkeys(span[0] for span in chosen))
        number = {name: index for index, name in enumerate(names)}
        return Timeline(
            device="cuda" if torch.cuda.is_available() else "cpu",
            kinds=self._kinds,
            names=names,
            spans=[
                (number[name], round(start, 3), round(took, 3), stream, layer)
                for name, start, took, stream, layer in chosen
            ],
            steps=[(len(spans), round(_length(spans), 3)) for spans in told],
            plain_us=[round(one, 3) for one in self._plain],
        )


def _length(spans: Sequence[Span]) -> float:
    return max(start + took for _, start, took, _, _ in spans)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def kinds(groups: Sequence[Any], count: int) -> list[str]:
    """Per decoder layer, the kind of its cache: ``Mamba``, ``MLAAttention``; else ``decoder``."""
    found: dict[int, str] = {}
    for group in groups:
        for name in group.layer_names:
            own = getattr(group.kv_cache_spec, "kv_cache_specs", {}).get(name, group.kv_cache_spec)
            index = next((int(part) for part in name.split(".") if part.isdigit()), -1)
            found.setdefault(index, type(own).__name__.removesuffix("Spec"))
    return [found.get(index, "decoder") for index in range(count)]


def decoder_layers(model: torch.nn.Module, count: int) -> list[torch.nn.Module]:
    """The first list of modules as long as the model has layers; empty where there is none."""
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    return []


def hooks(module: torch.nn.Module, name: str) -> list[Any]:
    """Handles of hooks that mark a module's calls by `name` in a profile."""
    running: list[Any] = []

    def enter(*_: Any) -> None:
        running.append(record_function(name))
        running[-1].__enter__()

    def leave(*_: Any) -> None:
        running.pop().__exit__(None, None, None)

    return [
        module.register_forward_pre_hook(enter),
        module.register_forward_hook(leave, always_call=True),
    ]


def profiled(run: Callable[[], Any]) -> tuple[Any, list[Span]]:
    """What `run` returns, and its spans, the first one starting at 0."""
    cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    _wait()
    with profile(activities=activities) as seen:
        result = run()
        _wait()
    events: Sequence[Any] = seen.events() or ()
    found = sorted(_kernels(events) if cuda else _operators(events), key=lambda span: span[1])
    first = found[0][1] if found else 0.0
    return result, [(name, start - first, *rest) for name, start, *rest in found]  # type: ignore[misc]


def _operators(events: Sequence[Any]) -> Iterator[Span]:
    """On a CPU: operators and compiled units that nothing but annotations surround."""
    threads: dict[int, int] = {}
    for event in events:
        if event.is_user_annotation and not event.name.startswith(UNIT):
            continue
        layer, outer = None, event.cpu_parent
        while outer is not None and outer.is_user_annotation and not outer.name.startswith(UNIT):
            layer = _layer(outer.name) if layer is None else layer
            outer = outer.cpu_parent
        if outer is None:
            stream = threads.setdefault(event.thread, len(threads))
            span = event.time_range
            yield event.name, span.start, span.end - span.start, stream, layer


def _kernels(events: Sequence[Any]) -> Iterator[Span]:
    """On a GPU: kernels, copies and fills; layers are marked on the device's own time line."""
    there = [event for event in events if event.device_type.name == "CUDA"]
    marks = sorted(
        (event.time_range.start, event.time_range.end, layer)
        for event in there
        if (layer := _layer(event.name)) is not None
    )
    starts = [mark[0] for mark in marks]
    streams: dict[int, int] = {}
    for event in sorted(there, key=lambda event: event.time_range.start):
        if event.is_user_annotation:
            continue
        span = event.time_range
        at = bisect_right(starts, span.start) - 1
        layer = marks[at][2] if at >= 0 and span.start < marks[at][1] else None
        stream = streams.setdefault(event.device_resource_id, len(streams))
        yield event.name, span.start, span.end - span.start, stream, layer


def _layer(name: str) -> int | None:
    return int(name.removeprefix(LAYER)) if name.startswith(LAYER) else None
