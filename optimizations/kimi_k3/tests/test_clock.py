"""The harness's device times where the model runs in other processes: two ranks of k3-nano in vLLM.

Protects: that each rank's worker gets a clock and hands its times out, one per engine step. There
is no GPU here: each worker gets a graph that is its own forward, and events of the host's clock.
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

from kimi_k3 import checkpoint

PLUGIN = {
    "distribution": "fasttrack-kimi-k3",
    "module": "kimi_k3",
    "vllm_plugins": ["kimi_k3"],
    "worker_extension": "kimi_k3.runtime.evidence.WorkerExtension",
}
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
}


def test_device_times_come_from_the_workers(tmp_path: Path) -> None:
    checkpoint.write("k3-nano-random", tmp_path / "nano")
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "nano"), str(tmp_path / "found.json")],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["plain"]["device_s"] == [], "no GPU, no times"
    assert len(set(found["processes"])) == 2
    for made in found["timed"]:
        steps, device_s = made["steps"], made["device_s"]
        assert len(steps) == len(device_s) == 5
        for step, seconds in zip(steps, device_s, strict=True):
            assert 0 < seconds < step["duration_s"]


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
    backend.start("test", "base", TARGET, {}, PLUGIN, nano)
    found: dict[str, Any] = {"plain": backend.generate(ASKED, None)}
    found["processes"] = backend._llm.collective_rpc(plant)
    found["timed"] = [backend.generate(ASKED, None) for _ in range(2)]
    Path(out).write_text(json.dumps(found))
    backend._llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
