"""The honest result file and its maker, shared with `tests/reject`; hostile texts beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[2] / "reject"))

import bundle_maker


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The author's key."""
    return bundle_maker.write_key(tmp_path_factory.mktemp("keys") / "author")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run folder; tests read it and never change it."""
    return bundle_maker.run_folder(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """A signed file that must verify; tests copy it and never change it."""
    return bundle_maker.honest(tmp_path_factory.mktemp("honest"), key)
