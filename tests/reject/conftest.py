"""One honest result file for the whole folder, and the keys of an honest and a hostile signer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

import bundle_maker


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The author's key."""
    return bundle_maker.write_key(tmp_path_factory.mktemp("keys") / "author")


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """A signed file that must verify; tests copy it and never change it."""
    return bundle_maker.honest(tmp_path_factory.mktemp("honest"), key)
