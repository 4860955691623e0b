"""Protects the question "who": a genuine signature by somebody not listed is refused, each way."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bundle_maker import PRINCIPAL, explode, public_line, write_key

from fasttrack.bundle import layout, statement
from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.schema.evidence import SIGNATURE_NAMESPACE
from fasttrack.verify import identity
from fasttrack.verify.steps import LISTED, NOT_CHECKED, verify

TODAY = datetime.now(UTC)
YESTERDAY = (TODAY - timedelta(days=1)).strftime("%Y%m%d%H%M%SZ")
TOMORROW = (TODAY + timedelta(days=1)).strftime("%Y%m%d%H%M%SZ")


def signers(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "allowed_signers"
    path.write_text("\n".join(["# people", "", *lines]) + "\n")
    return path


def test_without_a_list_names_prove_nothing(honest: Path) -> None:
    found = verify(honest)
    assert found.identity == NOT_CHECKED
    assert "not checked" in found.steps[5].detail


@pytest.mark.parametrize(
    "line",
    [
        "{name} {key}",
        "{name} {key} a comment",
        '"{name}" {key}',
        "bob,{name} {key}",
        "*@example.org {key}",
        '{name} namespaces="git,{ns}" {key}',
        '{name} namespaces="fasttrack-*" {key}',
        '{name} valid-after="{yesterday}",valid-before="{tomorrow}" {key}',
        '{name} valid-after="{yesterday}",namespaces="{ns}" {key}',
    ],
)
def test_listed_signer_passes_here_and_in_openssh(
    line: str, honest: Path, key: Path, tmp_path: Path
) -> None:
    path = signers(tmp_path, _fill(line, key))
    assert verify(honest, allowed_signers=path).identity == LISTED
    assert _openssh(honest, path, tmp_path) in (True, None)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("somebody@example.org {key}", "VER-040"),
        ("!{name},*@example.org {key}", "VER-040"),
        ("{name} {foreign}", "VER-041"),
        ('{name} valid-before="{yesterday}" {key}', "VER-042"),
        ('{name} valid-after="{tomorrow}" {key}', "VER-042"),
        ('{name} namespaces="git" {key}', "VER-043"),
    ],
)
def test_unlisted_signer_is_refused_here_and_in_openssh(
    line: str, code: str, honest: Path, key: Path, tmp_path: Path
) -> None:
    path = signers(tmp_path, _fill(line, key, write_key(tmp_path / "foreign")))
    with pytest.raises(VerificationFailed) as caught:
        verify(honest, allowed_signers=path)
    assert (caught.value.code, caught.value.cell) == (code, "signatures/1.json")
    assert _openssh(honest, path, tmp_path) in (False, None)


def test_empty_list_trusts_nobody(honest: Path, tmp_path: Path) -> None:
    with pytest.raises(VerificationFailed) as caught:
        verify(honest, allowed_signers=signers(tmp_path))
    assert caught.value.code == "VER-040"


def test_one_of_several_lines_is_enough(honest: Path, key: Path, tmp_path: Path) -> None:
    foreign = write_key(tmp_path / "foreign")
    lines = (_fill("{name} {foreign}", key, foreign), _fill("{name} {key}", key))
    assert verify(honest, allowed_signers=signers(tmp_path, *lines)).identity == LISTED


@pytest.mark.parametrize(
    "line",
    [
        "{name}",
        "{name} {key_type} not-base64!",
        "{name} cert-authority {key}",
        '{name} valid-before="20300101" {key}',
        '{name} valid-before="tomorrow" {key}',
        '{name} valid-before="20301301Z" {key}',
        '{name} namespaces="" {key}',
        "{name} namespaces=git {key}",
        '{name} colour="red" {key}',
        '{name} namespaces="a",namespaces="b" {key}',
        "{name} ssh-rsa {key_data}",
    ],
)
def test_line_that_cannot_be_read_stops_everything(
    line: str, honest: Path, key: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        verify(honest, allowed_signers=signers(tmp_path, _fill(line, key)))
    assert ":3:" in caught.value.cause


def test_missing_list(honest: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        verify(honest, allowed_signers=tmp_path / "absent")


def test_the_repository_list_can_be_read(repo: Path) -> None:
    identity.read(repo / "submissions" / "allowed_signers")


def _fill(line: str, key: Path, foreign: Path | None = None) -> str:
    kind, data = public_line(key).split()[:2]
    return line.format(
        name=PRINCIPAL, key=public_line(key), ns=SIGNATURE_NAMESPACE, yesterday=YESTERDAY,
        tomorrow=TOMORROW, key_type=kind, key_data=data,
        foreign=public_line(foreign) if foreign else "",
    )  # fmt: skip


def _openssh(honest: Path, path: Path, folder: Path) -> bool | None:
    """OpenSSH's judgement of the same file and list, or None without OpenSSH."""
    if shutil.which("ssh-keygen") is None:
        return None
    members = explode(honest)
    (folder / "signature").write_bytes(members["signatures/1.sig"])
    done = subprocess.run(
        ["ssh-keygen", "-Y", "verify", "-f", path, "-I", PRINCIPAL, "-n", SIGNATURE_NAMESPACE,
         "-s", folder / "signature"],
        input=statement.pae(members[layout.STATEMENT]), capture_output=True, check=False,
        timeout=60,
    )  # fmt: skip
    return done.returncode == 0
