"""aiperf, the client that replays traces: where it is, how it is asked, how it is run.

It lives in an environment of its own, because it pins other versions than the engine does, and is
started as a program. Its agentic replay is used without a benchmark scenario: a fixed number of
trees, each from its beginning, no marker against caches, so that both arms are asked the same
bytes. Owns no result: `export` reads what it leaves. Tried with aiperf 0.13.0.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrack.errors import UsageError

PROGRAM = "aiperf"
TRIED = "0.13.0"
HOME = "aiperf"
"""Its environment's folder beside the built checkpoints, where `INSTALL` puts it."""
INSTALL = (
    f"python3.12 -m venv .fasttrack/{HOME} && .fasttrack/{HOME}/bin/pip install {PROGRAM}=={TRIED}"
)
VERSION_S = 120.0
SEED = 42
_NOT_PASSED = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
"""With either of the first two, a tokenizer's folder is taken for a name on the hub; the others are
of our own environment."""


@dataclass(frozen=True)
class Client:
    """An installed aiperf."""

    program: Path
    version: str

    @property
    def name(self) -> str:
        """``aiperf 0.13.0``."""
        return f"{PROGRAM} {self.version}"


@dataclass(frozen=True)
class Asked:
    """A replay."""

    url: str
    model: str
    tokenizer: Path
    traces: Path
    trees: int
    concurrency: int
    idle_cap_s: float
    request: Mapping[str, Any]
    out: Path


def find(given: Path | None, cache: Path) -> Path | None:
    """The program: as given, else in `cache`, else on the path; None where there is none.

    Raises `UsageError` USE-001 for one that was given and is not there.
    """
    if given is not None:
        if not os.access(given, os.X_OK) or given.is_dir():
            raise UsageError(
                "USE-001", f"--aiperf {given} is no program", next_step=f"install it: {INSTALL}"
            )
        return given.absolute()
    kept = cache / HOME / "bin" / PROGRAM
    if os.access(kept, os.X_OK):
        return kept.absolute()
    found = shutil.which(PROGRAM)
    return Path(found) if found else None


def of(program: Path) -> Client:
    """The client with its version; empty where it does not say."""
    try:
        told = subprocess.run(
            [program, "--version"], env=_environment(None), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=VERSION_S, check=False,
        )  # fmt: skip
        words = told.stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        words = []
    return Client(program, words[-1] if words else "")


def config(asked: Asked) -> dict[str, Any]:
    """aiperf's own configuration."""
    return {
        "benchmark": {
            "models": {"items": [{"name": asked.model}]},
            "endpoint": {
                "urls": [asked.url],
                "type": "chat",
                "streaming": True,
                "use_server_token_count": True,
                "per_chunk_usage": True,
                "extra": {"temperature": 0, **asked.request, "ignore_eos": True},
            },
            "datasets": [
                {
                    "name": "main",
                    "type": "file",
                    "path": str(asked.traces),
                    "format": "weka_trace",
                    "cache_bust": {"target": "none"},
                }
            ],
            "phases": [
                {
                    "name": "profiling",
                    "type": "concurrency",
                    "timing_mode": "agentic_replay",
                    "concurrency": asked.concurrency,
                    "sessions": asked.trees,
                    "trajectory_start_min_ratio": 0,
                    "trajectory_start_max_ratio": 0,
                    "system_idle_gap_cap_seconds": asked.idle_cap_s,
                }
            ],
            "artifacts": {"dir": str(asked.out), "records": ["jsonl"], "raw": True},
            "tokenizer": {"name": str(asked.tokenizer)},
            "gpu_telemetry": {"enabled": False},
            "runtime": {"ui": "none"},
        },
        "random_seed": SEED,
    }


def replay(client: Client, asked: Asked, scratch: Path, log: Path, timeout_s: float) -> int | None:
    """Run it to the end; its exit status, None if it was stopped for taking too long.

    127 for one that cannot be started.
    """
    written = scratch / "config.json"
    written.write_text(json.dumps(config(asked), indent=1))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        try:
            process = subprocess.Popen(
                [client.program, "profile", "--config", written],
                cwd=scratch,
                env=_environment(scratch),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            out.write(f"{error}\n".encode())
            return 127
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # It has processes of its own, which an error or a limit would leave behind.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment(scratch: Path | None) -> dict[str, str]:
    passed = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
    passed |= {"AIPERF_DATASET_MMAP_CACHE_ENABLED": "false", "TOKENIZERS_PARALLELISM": "false"}
    if scratch is not None:
        passed["AIPERF_DATASET_MMAP_BASE_PATH"] = str(scratch)
    return passed
