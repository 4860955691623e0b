"""Protects packing: same run, same bytes; an archive other programs read; signatures survive."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from bundle_maker import explode, write_key

from fasttrack.bundle import archive, layout, sign
from fasttrack.bundle.reader import open_bundle
from fasttrack.errors import RunError, VerificationFailed


def test_same_folder_gives_the_same_bytes(run_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    for path in sorted(copy.rglob("*"), reverse=True):
        path.touch()
        path.chmod(0o700)
    one = archive.pack(run_folder, tmp_path / "one")
    two = archive.pack(copy, tmp_path / "two")
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_name_holds_claim_target_and_digest(run_folder: Path, tmp_path: Path) -> None:
    made = archive.pack(run_folder, tmp_path)
    with open_bundle(made) as bundle:
        assert made.name == f"demo-gpu-a-{bundle.manifest_sha256[:12]}.ftb"


def test_logs_and_lock_stay_behind(run_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    (copy / "logs").mkdir()
    (copy / "logs" / "engine.log").write_text("home address")
    (copy / "perf" / "notes.txt").write_text("private")
    made = archive.pack(copy, tmp_path)
    assert made.read_bytes() == archive.pack(run_folder, tmp_path / "other").read_bytes()


def test_other_programs_read_it(honest: Path) -> None:
    with zipfile.ZipFile(honest) as file:
        assert file.testzip() is None
        assert all(info.compress_type == zipfile.ZIP_STORED for info in file.infolist())
    if shutil.which("unzip"):
        done = subprocess.run(["unzip", "-tq", honest], capture_output=True, check=False)
        assert done.returncode == 0, done.stdout


def test_packing_again_keeps_signatures(run_folder: Path, key: Path, tmp_path: Path) -> None:
    made = archive.pack(run_folder, tmp_path)
    sign.sign(made, key=key, principal="ada")
    signed = made.read_bytes()
    assert archive.pack(run_folder, tmp_path).read_bytes() == signed


def test_packing_again_replaces_a_damaged_file(run_folder: Path, tmp_path: Path) -> None:
    made = archive.pack(run_folder, tmp_path)
    good = made.read_bytes()
    made.write_bytes(good[:-1])
    assert archive.pack(run_folder, tmp_path).read_bytes() == good


def test_unfinished_folder_is_not_packed(run_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    (copy / layout.PROVENANCE).unlink()
    with pytest.raises(RunError) as caught:
        archive.pack(copy, tmp_path)
    assert (caught.value.code, caught.value.cell) == ("RUN-003", layout.PROVENANCE)
    assert list(tmp_path.glob("*.ftb")) == []


def test_link_in_a_run_folder_is_not_followed(run_folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run_folder, copy)
    secret = tmp_path / "secret"
    secret.write_text("{}")
    (copy / layout.VERDICTS).unlink()
    (copy / layout.VERDICTS).symlink_to(secret)
    with pytest.raises(RunError) as caught:
        archive.pack(copy, tmp_path)
    assert caught.value.cell == layout.VERDICTS


def test_run_folder_and_archive_tell_the_same(run_folder: Path, tmp_path: Path) -> None:
    made = archive.pack(run_folder, tmp_path)
    with open_bundle(run_folder) as folder, open_bundle(made) as packed:
        assert list(folder.records()) == list(packed.records())
        assert list(folder.records("perf")) == list(packed.records("perf"))
        for name in ("claim", "policy", "plan", "run", "verdicts", "outcome", "provenance"):
            assert getattr(folder, name) == getattr(packed, name)
        assert packed.sealed and not folder.sealed
        with pytest.raises(VerificationFailed):
            _ = folder.manifest


def test_signing_changes_nothing_that_is_signed(honest: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(honest, tmp_path))
    before = explode(copy)
    sign.sign(copy, key=write_key(tmp_path / "second"), principal="eve", role="reproducer")
    after = explode(copy)
    assert set(after) - set(before) == {
        f"signatures/2.{end}" for end in ("sig", "json", "json.sig")
    }
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {layout.ENVELOPE}
