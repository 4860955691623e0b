"""Protects the lazy registry: engines are found without importing what they need."""

from __future__ import annotations

import subprocess
import sys

from fasttrack import engine


def test_the_engines_that_ship() -> None:
    assert {"fake", "vllm"} <= set(engine.registry())
    assert all(name == found.name for name, found in engine.registry().items())


def test_looking_for_engines_imports_nothing_heavy() -> None:
    code = (
        "import sys; from fasttrack.engine import registry; registry(); "
        "print(sorted({'torch', 'vllm', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
