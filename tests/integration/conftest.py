"""Lets the tests of this folder import the command line's runner, and share an import of vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="module")
def preloaded() -> Iterator[None]:
    """Engines are started from a process that has imported vLLM already."""
    import preloaded as way

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fasttrack.engine.channel.launch", way.launch)
        yield
