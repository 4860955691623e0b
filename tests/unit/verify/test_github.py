"""Protects identity by a GitHub account's published keys: a key counts while the account has it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bundle_maker as maker
import pytest

from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.verify.steps import LISTED, verify


def stamp(days: int) -> str:
    """A time so many days from now, as GitHub writes it."""
    return (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """A file signed in the name of an account."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maker, "PRINCIPAL", "github/octocat")
        return maker.honest(tmp_path_factory.mktemp("github"), key)


def snapshot(folder: Path, *keys: dict[str, Any], login: str = "octocat", **top: Any) -> Path:
    """A snapshot of one account."""
    path = folder / "github_keys.json"
    account = {"login": login, "id": 583231, "ssh_signing_keys": list(keys)}
    value = {"schema": "fasttrack.github-keys/v1", "fetched_utc": stamp(0), "accounts": [account]}
    path.write_text(json.dumps(value | top))
    return path


def entry(key: Path, /, **fields: Any) -> dict[str, Any]:
    """A key as GitHub's answer has it."""
    line = maker.public_line(key)
    return {"id": 7, "key": line, "title": "work", "created_at": stamp(-9), **fields}


def test_published_key_counts(signed: Path, key: Path, tmp_path: Path) -> None:
    path = snapshot(tmp_path, entry(maker.write_key(tmp_path / "other")), entry(key))
    assert verify(signed, allowed_signers=path).identity == LISTED


@pytest.mark.parametrize(
    ("fields", "login", "code"),
    [
        ({}, "hubot", "VER-040"),
        ({"key": "foreign"}, "octocat", "VER-041"),
        ({"created_at": stamp(1)}, "octocat", "VER-042"),
        ({"removed_utc": stamp(-1)}, "octocat", "VER-044"),
    ],
    ids=["other-account", "other-key", "added-later", "removed-before"],
)
def test_other_keys_do_not(
    signed: Path, key: Path, tmp_path: Path, fields: dict[str, Any], login: str, code: str
) -> None:
    if "key" in fields:
        fields = {"key": maker.public_line(maker.write_key(tmp_path / "foreign"))}
    path = snapshot(tmp_path, entry(key, **fields), login=login)
    with pytest.raises(VerificationFailed) as caught:
        verify(signed, allowed_signers=path)
    assert caught.value.code == code


def test_key_removed_after_signing_still_counts(signed: Path, key: Path, tmp_path: Path) -> None:
    path = snapshot(tmp_path, entry(key, removed_utc=stamp(1)))
    assert verify(signed, allowed_signers=path).identity == LISTED


@pytest.mark.parametrize(
    "top",
    [
        {"schema": "fasttrack.github-keys/v2"},
        {"fetched_utc": "yesterday"},
        {"fetched_utc": "2026-01-01T00:00:00"},
        {"accounts": [{"login": "*", "id": 1, "ssh_signing_keys": []}]},
        {"accounts": [{"login": "a", "ssh_signing_keys": []}]},
        {"more": 1},
    ],
)
def test_snapshot_that_cannot_be_read(
    signed: Path, key: Path, tmp_path: Path, top: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        verify(signed, allowed_signers=snapshot(tmp_path, entry(key), **top))
    assert caught.value.code == "USE-001" and "github_keys.json" in caught.value.cause


@pytest.mark.parametrize("text", ["{", '{"a": 1, "a": 2}', "{}"])
def test_text_that_is_no_snapshot(signed: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "github_keys.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        verify(signed, allowed_signers=path)
