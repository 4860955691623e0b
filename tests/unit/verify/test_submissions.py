"""Bundles this repository publishes, under the code of today.

Protects: what a reader of `submissions/` is told to do, verify them, works; rules that moved since
a bundle was made show here and not at the reader's. A claim's targets may stand in any order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrack.cli.main import main

BUNDLES = sorted((Path(__file__).parents[3] / "submissions").glob("*/*.ftb"))


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.stem)
def test_a_published_bundle_verifies(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(bundle)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("OK ")
