"""Real engines out of a process that has imported vLLM already.

The import is two thirds of a small model's boot on a CPU, and the same each time. Nothing else
differs from the way `fasttrack` starts a child: a process of its own that runs the same module as
its main one, with the environment, log and channel it was given. Files in which an import could
matter, and those whose times are looked at, do without.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import reduction
from multiprocessing.context import ForkServerProcess
from typing import IO, Any

MODULES = ("vllm.entrypoints.llm", "vllm.v1.engine.llm_engine")
_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload([*MODULES, __name__])


class Started:
    """As much of `subprocess.Popen` as a channel uses."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid: int = process.pid

    def poll(self) -> int | None:
        """See `Popen`."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """See `Popen`."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked child", timeout or 0.0)
        return self._process.exitcode


def launch(module: str, end: socket.socket, sink: IO[bytes], env: Mapping[str, str]) -> Started:
    """See `fasttrack.engine.channel.launch`."""
    handles = reduction.DupFd(end.fileno()), reduction.DupFd(sink.fileno())
    process = _forked.Process(target=_run, args=(module, *handles, dict(env)))
    process.start()
    return Started(process)


def _run(module: str, end: Any, sink: Any, env: Mapping[str, str]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(env)
    # As a new interpreter does: what is planted comes this way.
    places = [*filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:0] = [place for place in places if place not in sys.path]
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    log = sink.detach()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv[1:] = [str(end.detach())]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
