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

from fasttrack.engine._vllm_evidence import Entry, Observation, names
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


@contextlib.contextmanager
def _traced(runner: Any, seen: list[dict[str, int]]) -> Iterator[None]:
    """Names of every step with tokens go into `seen`."""
    plain: Callable[..., Any] = runner.execute_model

    def execute(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        if not scheduled.total_num_scheduled_tokens:
            return plain(scheduled, *args, **kwargs)
        result, found = names(lambda: plain(scheduled, *args, **kwargs))
        seen.append(found)
        return result

    runner.execute_model = execute
    try:
        yield
    finally:
        runner.execute_model = plain


def begin(worker: Any, asked: Mapping[str, bool]) -> None:
    """Look at this rank; `asked`: trace, state, watermark."""
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        seen = Observation(worker.model_runner, _entry, **asked)
        stack.enter_context(seen.watching())
        if seen.trace:
            stack.enter_context(_traced(worker.model_runner, seen.names))
        worker.fasttrack_seen = seen, stack.pop_all()


def end(worker: Any) -> dict[str, Any]:
    """Look no more, and tell what was seen; see `Observation.told`."""
    seen, stack = worker.fasttrack_seen
    del worker.fasttrack_seen
    stack.close()
    found: dict[str, Any] = seen.told()
    return found
