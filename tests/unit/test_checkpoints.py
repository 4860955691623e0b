"""Protects the weights: found or built, never half built, and held to the pinned digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrack import checkpoints, folders
from fasttrack.errors import EnvironmentUnmet
from fasttrack.schema.claim import Checkpoint

WRITE = ("{python}", "-c", "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(); "
         "(p / 'config.json').write_text('{}')", "{out}")  # fmt: skip
HALF = ("{python}", "-c", "import pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(); (p / "
        "'config.json').write_text('{'); print('disk full'); sys.exit(3)", "{out}")  # fmt: skip


def ensure(checkpoint: Checkpoint, tmp_path: Path) -> tuple[Path, str]:
    """The checkpoint, from a cache below `tmp_path`."""
    return checkpoints.ensure(checkpoint, tmp_path / "cache", tmp_path / "logs")


def refused(checkpoint: Checkpoint, tmp_path: Path, code: str) -> EnvironmentUnmet:
    """The error, of that code."""
    with pytest.raises(EnvironmentUnmet) as caught:
        ensure(checkpoint, tmp_path)
    assert caught.value.code == code
    assert caught.value.exit_status == 4
    assert caught.value.cell == "tiny"
    return caught.value


def test_it_is_built_once(tmp_path: Path) -> None:
    folder, digest = ensure(Checkpoint(name="tiny", build=WRITE), tmp_path)
    assert (folder / "config.json").read_text() == "{}"
    assert digest == folders.digest(folder)
    # A second time the command would fail: the folder is there.
    assert ensure(Checkpoint(name="tiny", build=HALF), tmp_path) == (folder, digest)
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_missing_and_nothing_to_build_it_with(tmp_path: Path) -> None:
    error = refused(Checkpoint(name="tiny"), tmp_path, "ENV-003")
    assert "FASTTRACK_CHECKPOINT_TINY" in error.next_step


def test_a_build_that_fails_leaves_nothing_behind_to_be_mistaken(tmp_path: Path) -> None:
    for _ in range(2):
        error = refused(Checkpoint(name="tiny", build=HALF), tmp_path, "ENV-003")
        assert "status 3" in error.cause
        log = tmp_path / "logs" / "build-tiny.log"
        assert str(log) in error.cause
        assert log.read_text() == "disk full\n"
    assert not (tmp_path / "cache" / "tiny").exists()
    assert ensure(Checkpoint(name="tiny", build=WRITE), tmp_path)


def test_a_build_that_writes_nothing(tmp_path: Path) -> None:
    nothing = Checkpoint(name="tiny", build=("{python}", "-c", "pass"))
    assert "status 0" in refused(nothing, tmp_path, "ENV-003").cause


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    error = refused(Checkpoint(name="tiny", build=("no-such-program",)), tmp_path, "ENV-003")
    assert "No such file" in error.cause


def test_a_build_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "BUILD_TIMEOUT_S", 0.2)
    sleeps = Checkpoint(name="tiny", build=("{python}", "-c", "import time; time.sleep(60)"))
    assert "timed out" in refused(sleeps, tmp_path, "ENV-003").cause


def test_a_wrong_digest(tmp_path: Path) -> None:
    folder, digest = ensure(Checkpoint(name="tiny", build=WRITE), tmp_path)
    assert ensure(Checkpoint(name="tiny", sha256=digest), tmp_path) == (folder, digest)
    (folder / "config.json").write_text("{ }")
    error = refused(Checkpoint(name="tiny", sha256=digest), tmp_path, "ENV-004")
    assert digest[:12] in error.cause
    assert str(folder) in error.next_step


def test_a_folder_named_by_the_environment_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "config.json").write_text("{}")
    monkeypatch.setenv("FASTTRACK_CHECKPOINT_TINY", str(given))
    assert ensure(Checkpoint(name="tiny", build=HALF), tmp_path)[0] == given
    monkeypatch.setenv("FASTTRACK_CHECKPOINT_TINY", str(tmp_path / "absent"))
    # Nothing is built into a folder that somebody named.
    refused(Checkpoint(name="tiny", build=WRITE), tmp_path, "ENV-003")
