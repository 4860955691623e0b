"""Protects files that exist already: each golden file still verifies and still means the same, and
making it again gives the same bytes. After a wanted change: `make golden`."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from fasttrack.verify.steps import LISTED, verify

HERE = Path(__file__).resolve().parent
# By its path: `build` is also the name of an installed package.
SPEC = spec_from_file_location("golden_build", HERE / "build.py")
assert SPEC is not None and SPEC.loader is not None
build = module_from_spec(SPEC)
SPEC.loader.exec_module(build)
GOLDEN = sorted(HERE.glob("*.ftb"))
LIMIT = 400_000


def test_there_is_one_of_every_format() -> None:
    assert [path.stem for path in GOLDEN] == ["v1"]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_it_still_verifies(path: Path) -> None:
    found = verify(path, allowed_signers=HERE / build.SIGNERS)
    assert found.identity == LISTED
    assert [signer.role for signer in found.signers] == ["author", "reproducer"]
    assert path.stat().st_size < LIMIT


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_it_still_means_the_same(path: Path) -> None:
    assert build.expected(path) == path.with_suffix(".json").read_text()


def test_made_again_it_is_the_same(tmp_path: Path) -> None:
    build.build(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        assert path.read_bytes() == (HERE / path.name).read_bytes(), f"{path.name}: make golden"
