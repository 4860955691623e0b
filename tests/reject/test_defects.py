"""Protects trust in a result file: each known way of spoiling one is refused, by its own code.

The honest file must pass, so that no check rejects by refusing everything. Each spoilt file lies in
a folder named after its defect; `write_folders.py` makes them to look at. Codes whose subject
is what the reader brings, signers and identities (VER-040..044, -046), or a broken rule (VER-073)
are tested where those are: `tests/unit/verify`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from bundle_maker import explode, write_key
from defects import DEFECTS, Defect, Lab

from fasttrack.errors import EXIT_REJECTED, VerificationFailed
from fasttrack.verify.codes import CODES
from fasttrack.verify.steps import verify

ELSEWHERE = {"VER-040", "VER-041", "VER-042", "VER-043", "VER-044", "VER-046", "VER-073"}


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key of somebody else."""
    return write_key(tmp_path_factory.mktemp("keys") / "foreign")


def test_the_honest_file_passes(honest: Path) -> None:
    found = verify(honest)
    assert found.outcome.state == "PASS"
    assert [step.number for step in found.steps] == list(range(1, 15))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.make.__name__)
def test_defect_is_refused_with_its_code(
    defect: Defect, honest: Path, key: Path, foreign: Path, tmp_path: Path
) -> None:
    folder = tmp_path / defect.make.__name__
    folder.mkdir()
    raw = honest.read_bytes()
    spoilt = defect.make(Lab(explode(honest), raw, key, foreign, folder))
    assert spoilt.read_bytes() != raw
    with pytest.raises(VerificationFailed) as caught:
        verify(spoilt)
    assert caught.value.code == defect.code, caught.value.cause
    assert caught.value.exit_status == EXIT_REJECTED
    assert caught.value.cell
    if defect.member is not None:
        assert caught.value.cell == defect.member


def test_every_code_has_a_defect_and_every_defect_a_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counted = Counter(defect.code for defect in DEFECTS)
    assert set(counted) | ELSEWHERE == set(CODES)
    assert len({defect.make.__name__ for defect in DEFECTS}) == len(DEFECTS)
    with capsys.disabled():
        print(f" {len(DEFECTS)} defects, {len(counted)} reject codes ", end="")


def test_every_code_in_the_source_is_in_the_table(repo: Path) -> None:
    sources = [*(repo / "fasttrack/bundle").glob("*.py"), *(repo / "fasttrack/verify").glob("*.py")]
    used = {
        code
        for path in sources
        if path.name != "codes.py"
        for code in re.findall(r'"(VER-\d{3})"', path.read_text())
    }
    assert used == set(CODES)


def test_every_case_of_the_documentation_is_held_off_somewhere(repo: Path) -> None:
    page = (repo / "docs/verify.md").read_text().partition("## The cases of the literature")[2]
    named = set(re.findall(r"`([a-z_]+)`", page))
    written = "".join(path.read_text() for path in (repo / "tests").rglob("test_*.py"))
    tests = set(re.findall(r"^def (test_\w+)", written, re.MULTILINE))
    assert len(named) > 45
    assert named <= {defect.make.__name__ for defect in DEFECTS} | tests
