"""What every test may count on: a quiet, offline, single-threaded process and honest skips.

Owns the environment of the test process and the meaning of the `engine` and `gpu` markers. Set
here rather than in the Makefile, so that a bare `pytest` behaves the same.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

# One thread: with more, torch's workers and the engine's contend for the same few cores. Offline:
# a test that would fetch weights or data from a hub fails at once instead of hanging.
os.environ.update(
    OMP_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
)
# A developer's own settings must not decide what a test sees.
for _name in [name for name in os.environ if name.startswith("FASTTRACK_")]:
    del os.environ[_name]

CUTE_PYTHON = Path(__file__).resolve().parents[1] / ".venv-cute" / "bin" / "python"
NEEDS = {
    "engine": (importlib.util.find_spec("vllm") is not None, "vLLM is not installed"),
    "cute": (CUTE_PYTHON.exists(), "no kernel compiler: `make cute` sets up .venv-cute"),
    "gpu": (shutil.which("nvidia-smi") is not None, "no NVIDIA GPU here"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine cannot run. Files with slow tests come first, so
    that no process is left alone with one of them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        for marker, (met, reason) in NEEDS.items():
            if item.get_closest_marker(marker) and not met:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def cute(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python that has the kernel compiler; the audit is told of it."""
    monkeypatch.setenv("FASTTRACK_CUTE_PYTHON", str(CUTE_PYTHON))
    return CUTE_PYTHON


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the working tree."""
    return Path(__file__).resolve().parents[1]
