"""What the harness sees of a rank whose model runs in a process of its own.

vLLM imports the claim's worker extension in every rank's process before it makes anything there.
In the path stage of several ranks it is given this module's `Extension` instead, which is the
claim's with nothing added: importing it wraps the claim's entry in that process, before a graph is
captured. `begin` and `end` are called there by vLLM's `collective_rpc`. Owns when a rank is looked
at and what it tells; what is seen of a step is `_vllm_evidence`'s.

Steps arrive in the order they were scheduled, so the n-th with tokens is the scheduler's n-th. A
trace holds what runs inside `execute_model`: with one rank it holds the whole engine's step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import torch

from fasttrack.engine._vllm_evidence import CannotWatch, Entry, StateWatch, names
from fasttrack.engine.vllm_arguments import CLAIMED_ENTRY, CLAIMED_EXTENSION


def _claimed() -> type:
    """The claim's extension; an empty one where it has none, or where nobody named it."""
    module, _, name = os.environ.get(CLAIMED_EXTENSION, "").rpartition(".")
    found: type = getattr(import_module(module), name) if module else object
    return found


def _wrapped() -> Entry | None:
    """The claim's entry, which tells its device once the rank has one."""
    if not os.environ.get(CLAIMED_ENTRY):
        return None
    from vllm.v1.worker.gpu_worker import Worker

    entry, plain = Entry(os.environ[CLAIMED_ENTRY], flag=False), Worker.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        entry.prepare(self.device)
        return plain(self, *args, **kwargs)

    Worker.load_model = load_model
    return entry


_entry = _wrapped()
Extension: type = type("Extension", (_claimed(),), {"__doc__": "The claim's, in a rank's process."})


class Look:
    """At one rank, for one call of the engine."""

    def __init__(self, runner: Any, trace: bool, state: bool, watermark: bool) -> None:
        self._runner = runner
        self._trace = trace
        self._watermark = watermark
        self._watch: StateWatch | None = None
        self._problem = ""
        self._names: list[dict[str, int]] = []
        self._calls = _entry.calls if _entry else 0
        if state:
            try:
                self._watch = StateWatch(runner)
            except CannotWatch as error:
                self._problem = str(error)
        self._stack = contextlib.ExitStack()

    def begin(self) -> None:
        """Watch every step from now on."""
        if self._watch:
            self._stack.enter_context(self._watch.watching())
        if self._watermark and _entry:
            self._stack.enter_context(_entry.constant())
        if self._trace:
            self._stack.enter_context(self._tracing())

    @contextlib.contextmanager
    def _tracing(self) -> Iterator[None]:
        plain: Callable[..., Any] = self._runner.execute_model

        def execute(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
            if not scheduled.total_num_scheduled_tokens:
                return plain(scheduled, *args, **kwargs)
            result, seen = names(lambda: plain(scheduled, *args, **kwargs))
            self._names.append(seen)
            return result

        self._runner.execute_model = execute
        try:
            yield
        finally:
            self._runner.execute_model = plain

    def end(self) -> dict[str, Any]:
        """Watch no more, and tell what was seen, as `RankEvidence` has it."""
        self._stack.close()
        watch, eager = self._watch, self._runner.vllm_config.model_config.enforce_eager
        return {
            "entry_calls": _entry.calls - self._calls if _entry and eager else None,
            "trace": self._names,
            "state": [one.json_value() for one in watch.steps] if watch else [],
            "watched_blocks": watch.watched if watch else 0,
            "blocks": watch.blocks if watch else 0,
            "problem": self._problem,
        }


def begin(worker: Any, asked: Mapping[str, bool]) -> None:
    """Look at this rank; `asked`: trace, state, watermark."""
    with torch.inference_mode():
        worker.fasttrack_look = Look(worker.model_runner, **asked)
        worker.fasttrack_look.begin()


def end(worker: Any) -> dict[str, Any]:
    """See `Look.end`."""
    found: dict[str, Any] = worker.fasttrack_look.end()
    del worker.fasttrack_look
    return found
