"""What the harness sees where the model runs in other processes: two ranks of k3-nano in vLLM.

Protects: that each rank's worker gets a clock and hands its times out, one per engine step, and
that the path stage looks at each: names, caches and the entry. There is no GPU here: for the clock
each worker gets a graph that is its own forward, and events of the host's clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kimi_k3 import checkpoint

PLUGIN = {
    "distribution": "fasttrack-kimi-k3",
    "module": "kimi_k3",
    "vllm_plugins": ["kimi_k3"],
    "worker_extension": "kimi_k3.runtime.evidence.WorkerExtension",
    "entry": "kimi_k3.runtime.executor:Executor.run",
}
SWITCH = {"decode_backend": "latency_specialized"}
TARGET = {
    "engine": "vllm",
    "role": "development",
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 4,
    "tensor_parallel_size": 2,
    "grid": {"batch": [1], "context_tokens": [64]},
    "checkpoint": {"name": "nano", "build": ["none"]},
}
ASKED = [{"prompt": list(range(1, 9)), "sampling": {"max_tokens": 5, "ignore_eos": True}}]
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "FASTTRACK_OBSERVED": "1",
}
NOTHING = {"trace": False, "state": False, "watermark": False, "timeline": False}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one engine of two ranks told."""
    folder = tmp_path_factory.mktemp("ranks")
    checkpoint.write("k3-nano-random", folder / "nano")
    done = subprocess.run(
        [sys.executable, __file__, str(folder / "nano"), str(folder / "found.json")],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return told


def test_device_times_come_from_the_workers(found: dict[str, Any]) -> None:
    assert found["plain"]["device_s"] == [], "no GPU, no times"
    assert len(set(found["processes"])) == 2
    for made in found["timed"]:
        steps, device_s = made["steps"], made["device_s"]
        assert len(steps) == len(device_s) == 5
        for step, seconds in zip(steps, device_s, strict=True):
            assert 0 < seconds < step["duration_s"]


def test_each_rank_is_traced_and_counts_calls_of_the_entry(found: dict[str, Any]) -> None:
    first = found["trace"]
    (second,) = first["others"]
    for rank in (first, second):
        assert len(rank["trace"]) == len(first["generation"]["steps"]) == 5
        prefill, *decode = rank["trace"]
        assert "aten::bmm" in prefill and not any("aten::bmm" in names for names in decode)
        assert rank["entry_calls"] == len(decode)


def test_caches_of_each_rank_are_compared(found: dict[str, Any]) -> None:
    first = found["state"]
    (second,) = first["others"]
    assert first["state"] == second["state"] and first["blocks"] == second["blocks"] > 0
    assert all(step["slots"] and step["rows"] and not step["foreign"] for step in first["state"])


def test_the_entry_is_replaced_on_every_rank(found: dict[str, Any]) -> None:
    plain, marked, again = (
        found[name]["generation"]["answers"][0]["token_ids"]
        for name in ("trace", "watermark", "state")
    )
    assert plain[0] == marked[0] and plain != marked
    assert plain == again, "nothing is left behind"


class Event:
    """An event of the host's clock."""

    def record(self) -> None:
        """See the class."""
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        return 1e3 * (end.at - self.at)


def plant(worker: Any) -> int:
    """In a worker: its forward is a graph from now on, and timed. Returns the process."""
    import torch

    from fasttrack.engine import _vllm_device

    runner, manager = worker.model_runner, SimpleNamespace(run_fullgraph=lambda run: run())
    execute = runner.execute_model

    def replayed(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        return manager.run_fullgraph(lambda: execute(scheduled, *args, **kwargs))

    runner.execute_model, runner.cudagraph_manager = replayed, manager
    honest, torch.cuda.is_available = torch.cuda.is_available, lambda: True
    _vllm_device._event, torch.cuda.synchronize = Event, lambda: None  # type: ignore[assignment]
    _vllm_device.install(worker)
    torch.cuda.is_available = honest
    return os.getpid()


def main(nano: str, out: str) -> None:
    """The harness's child, driven by hand."""
    from fasttrack.engine._vllm_child import Backend

    backend = Backend()
    backend.start("test", "candidate", TARGET, SWITCH, PLUGIN, nano)
    found: dict[str, Any] = {"plain": backend.generate(ASKED, None)}
    for what in ("trace", "watermark", "state"):
        found[what] = backend.evidence(ASKED, **NOTHING | {what: True})
    found["processes"] = backend._llm.collective_rpc(plant)
    found["timed"] = [backend.generate(ASKED, None) for _ in range(2)]
    Path(out).write_text(json.dumps(found))
    backend._llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
