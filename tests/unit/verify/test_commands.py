"""Protects the commands as a user meets them: exit status, data on stdout, talk on stderr."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import bundle_maker as maker
import pytest

from fasttrack.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def spoilt(honest: Path, tmp_path: Path) -> Path:
    """The honest file with one byte of a record changed."""
    raw = bytearray(honest.read_bytes())
    raw[raw.index(b'"kind":"item"')] ^= 1
    path = tmp_path / "spoilt.ftb"
    path.write_bytes(bytes(raw))
    return path


def test_verify(capsys: pytest.CaptureFixture[str], honest: Path) -> None:
    status, out, err = run(capsys, "verify", honest)
    assert status == 0
    assert out.startswith("OK ") and out.endswith("PASS\n")
    assert "14 report" in err
    status, out, _ = run(capsys, "verify", honest, "--json")
    assert status == 0 and json.loads(out)["verified"] is True


def test_verify_names_the_damaged_file(capsys: pytest.CaptureFixture[str], spoilt: Path) -> None:
    status, out, err = run(capsys, "verify", spoilt)
    assert (status, out) == (6, "")
    assert "VER-007" in err and "evals/" in err and "Traceback" not in err
    status, out, _ = run(capsys, "verify", spoilt, "--json")
    error = json.loads(out)["error"]
    assert status == error["exit_status"] == 6
    assert error["code"] == "VER-007" and error["cell"].startswith("evals/")


def test_every_reject_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "VER-024")
    assert status == 0 and "manifest" in out


def test_verify_of_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "verify", tmp_path / "absent.ftb")[0] == 6
    assert run(capsys, "verify")[0] == 2


def test_report(capsys: pytest.CaptureFixture[str], honest: Path, tmp_path: Path) -> None:
    status, out, err = run(capsys, "report", honest)
    assert status == 0
    assert "Not tested by this run" in out + err
    junit = tmp_path / "junit.xml"
    status, out, _ = run(capsys, "report", honest, "--markdown", "--junit", junit)
    assert status == 0
    assert out.encode() == maker.explode(honest)["report/report.md"]
    assert junit.read_text().startswith("<?xml")
    status, out, _ = run(capsys, "report", honest, "--json")
    assert json.loads(out)["outcome"]["state"] == "PASS"


def test_report_of_a_run_folder(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    assert run(capsys, "report", run_folder, "--json")[0] == 0


def test_sign_then_gate(
    capsys: pytest.CaptureFixture[str], honest: Path, key: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(honest, tmp_path))
    second = maker.write_key(tmp_path / "second")
    status, out, err = run(
        capsys, "sign", copy, "--key", second, "--principal", "bob", "--role", "reproducer"
    )
    assert status == 0
    assert "ssh-keygen -Y verify" in out and "signature 2: bob" in err
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(
        f"{maker.PRINCIPAL} {maker.public_line(key)}\nbob {maker.public_line(second)}\n"
    )
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    status, out, _ = run(
        capsys, "gate", copy, "--allowed-signers", allowed, "--reproduced", "--summary", summary
    )
    assert status == 0
    assert summary.read_text() == "before\n" + out


def test_gate_refuses_and_says_why(capsys: pytest.CaptureFixture[str], spoilt: Path) -> None:
    status, out, err = run(capsys, "gate", spoilt, "--json")
    assert status == 6
    assert json.loads(out)["decisions"][0]["refused"]["code"] == "VER-007"
    assert "VER-007" in err


def test_sign_without_a_key(
    capsys: pytest.CaptureFixture[str],
    honest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    copy = Path(shutil.copy(honest, tmp_path))
    status, _, err = run(capsys, "sign", copy)
    assert status == 4 and "ENV-006" in err
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert run(capsys, "sign", copy, "--development")[0] == 0
