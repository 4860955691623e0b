"""Protects where data come from: a pinned commit of the hub or nothing, and no file in another's
place. The hub is a folder in its client's cache, or a small server on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fasttrack.cli.common import data_files
from fasttrack.errors import EnvironmentUnmet, FasttrackError, UsageError
from fasttrack.evals import manifest
from fasttrack.evals.source import locate
from fasttrack.schema import Claim

constants: Any = pytest.importorskip("huggingface_hub.constants")

COMMIT, OTHER = "a" * 40, "b" * 40
CONTENT = b'{"problem": "1 + 1", "answer": "2"}\n'


def claim(**evals: dict[str, Any]) -> Claim:
    grid = {"batch": [1], "context_tokens": [8]}
    target = {"engine": "fake", "role": "development", "grid": grid, "evals": evals}
    return Claim.model_validate(
        {
            "schema": "fasttrack.claim/v1",
            "name": "demo",
            "title": "t",
            "summary": "s",
            "scope": {"models": ["m"], "ops": ["o"], "paths": ["p"]},
            "switch": {"key": "additional_config.a", "base": "x", "candidate": "y"},
            "plugin": {"distribution": "demo", "module": "demo"},
            "speed": {"sentence": "slower_nowhere"},
            "targets": {"t": target},
        }
    )


def aime(**changes: Any) -> dict[str, Any]:
    return {"file": "data/test.jsonl", "answer_tokens": 8, **changes}


PINNED = aime(repo="math-ai/aime25", revision=COMMIT)


class Hub(BaseHTTPRequestHandler):
    """One file at one commit; `answers` is the commit it claims to hand out."""

    answers = COMMIT

    def do_HEAD(self) -> None:
        wanted = f"/datasets/math-ai/aime25/resolve/{COMMIT}/data/test.jsonl"
        found = self.path.partition("?")[0] == wanted
        self.send_response(200 if found else 404)
        self.send_header("ETag", f'"{hashlib.sha256(CONTENT).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.answers)
        if not found:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(CONTENT) if found else 0))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(CONTENT)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A hub on this machine; the client is online."""
    kind = type("Served", (Hub,), {})
    server = HTTPServer(("127.0.0.1", 0), kind)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    yield kind
    server.shutdown()
    server.server_close()


def test_a_snapshot_in_the_cache_is_taken_without_a_network(cache: Path, tmp_path: Path) -> None:
    file = cache / "datasets--math-ai--aime25" / "snapshots" / COMMIT / "data" / "test.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(CONTENT)
    found = locate(claim(aime25=PINNED), "t", tmp_path, {})
    assert found == {"aime25": file}
    # Another commit of the same file is not the one that is wanted.
    with pytest.raises(EnvironmentUnmet) as told:
        locate(claim(aime25={**PINNED, "revision": OTHER}), "t", tmp_path, {})
    assert told.value.code == "EVL-008"


def test_offline_and_without_a_snapshot_nothing_else_is_taken(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "test.jsonl").write_bytes(CONTENT)  # of the same name: not the hub's
    for step in (locate, manifest.load):
        with pytest.raises(EnvironmentUnmet) as told:
            step(claim(aime25=PINNED), "t", tmp_path, {})
        assert (told.value.code, told.value.exit_status) == ("EVL-008", 4)
        assert COMMIT in told.value.cause and "--data aime25=FILE" in told.value.next_step


@pytest.mark.usefixtures("served")
def test_the_hub_hands_out_a_pinned_file(tmp_path: Path) -> None:
    found = locate(claim(aime25=PINNED), "t", tmp_path, {})
    assert found["aime25"].read_bytes() == CONTENT
    with pytest.raises(EnvironmentUnmet, match="EVL-008"):
        locate(claim(aime25={**PINNED, "file": "absent.jsonl"}), "t", tmp_path, {})


def test_another_commit_than_asked_for_is_refused(served: type[Hub], tmp_path: Path) -> None:
    served.answers = OTHER
    with pytest.raises(EnvironmentUnmet, match="another commit") as told:
        locate(claim(aime25=PINNED), "t", tmp_path, {})
    assert told.value.code == "EVL-008"


def test_a_given_file_stands_for_the_claims_and_is_held_to_its_digest(tmp_path: Path) -> None:
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(CONTENT)
    wanted = claim(aime25={**PINNED, "sha256": "0" * 64})
    assert locate(wanted, "t", tmp_path, {"aime25": mine}) == {"aime25": mine}
    with pytest.raises(UsageError) as told:
        manifest.data_digest(mine, "0" * 64, "aime25")
    assert told.value.code == "EVL-002"
    with pytest.raises(UsageError, match="no external eval"):
        locate(wanted, "t", tmp_path, {"mrcr": mine})


@pytest.mark.parametrize("value", ["aime25", "=x", "aime25=", ""])
def test_data_on_the_command_line_has_one_form(value: str) -> None:
    assert data_files(["aime25=a=b"]) == {"aime25": Path("a=b")}
    with pytest.raises(FasttrackError, match="USE-001"):
        data_files([value])
    with pytest.raises(FasttrackError, match="USE-001"):
        data_files(["mrcr=a", "mrcr=b"])


@pytest.mark.parametrize(
    "change",
    [{"repo": "math-ai/aime25"}, {"revision": COMMIT},
     {"repo": "math-ai/aime25", "revision": "main"}, {"repo": "/etc", "revision": COMMIT}],
)  # fmt: skip
def test_a_source_without_a_commit_is_no_source(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="1 validation error for Claim"):
        claim(aime25=aime(**change))
    assert json.loads(claim(aime25=PINNED).model_dump_json())["targets"]["t"]["evals"]
