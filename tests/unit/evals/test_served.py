"""Protects evals through a server: lm-eval's client asks it, and a server that fails, dies, cuts,
echoes, renders otherwise or ignores what it was told leaves errors and no gap. The server is a
small one in this process, the child that would keep it a stand-in."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from fasttrack.engine.base import Engine, Request, Session, SessionInfo
from fasttrack.engine.setting import Setting
from fasttrack.errors import RunError, UsageError
from fasttrack.evals import manifest
from fasttrack.evals.external.asker import MAX_BOOTS
from fasttrack.evals.external.prepare import prepare
from fasttrack.evals.external.run import run
from fasttrack.schema import Claim, ItemRecord, MonitorRecord, PathRecord, SessionRecord

pytest.importorskip("lm_eval")

ROWS = [{"problem": f"What is {i} + {i}?", "answer": 2 * i} for i in range(3)]
TOKENS = 12
FROZEN: list[manifest.Manifest] = []
"""The items, which are the same for all tests."""


def rendered(messages: Sequence[dict[str, str]], fault: str = "") -> list[int]:
    """Bytes are tokens."""
    said = "".join(f"<{one['role']}>{one['content']}" for one in messages)
    return list((said + ("<brief>" if fault == "changes_template" else "")).encode())


class Handler(BaseHTTPRequestHandler):
    """Completions: digits from a hash of prompt and seed."""

    fault = ""
    asked = 0
    dead = False
    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = type(self)
        kind.asked += 1
        kind.bodies.append(body)
        if self.fault == "dies" and kind.asked == 3:
            kind.dead = True
        if kind.dead:
            self.close_connection = True
            return
        if self.fault == "answers_nothing" and kind.asked == 1:
            time.sleep(2.5)
            return
        status, answer = 200, self.answer(body)
        if self.fault == "returns_errors" and kind.asked % 2 == 0:
            status, answer = 500, {"error": {"message": "planted: out of blocks"}}
        content = b"<html>" if self.fault == "no_json" else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = rendered(body["messages"])
        seed = None if self.fault == "ignores_temperature" else body["seed"]
        digits = int(hashlib.sha256(f"{prompt}{seed}".encode()).hexdigest(), 16)
        ids = list(str(digits)[: body["max_tokens"]].encode())
        if self.fault == "ignores_max_tokens":
            ids += [49]
        if self.fault == "echoes":
            ids = prompt[: len(ids)]
        if self.fault == "truncates":
            prompt = prompt[-20:]
        positions = [
            {"token": chr(one), "logprob": -0.5, "top_logprobs": [{"logprob": -0.5},
                                                                  {"logprob": -1.25}]}
            for one in ids
        ]  # fmt: skip
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": bytes(ids).decode()},
            "logprobs": {"content": positions},
            "finish_reason": "length",
            "token_ids": ids,
        }
        return {
            "choices": [choice],
            "usage": {"prompt_tokens": len(prompt), "prompt_tokens_details": None},
            "prompt_token_ids": prompt,
        }

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Kept:
    """Stands for the child: renders as the server does, and knows whether it is dead."""

    def __init__(self, url: str, kind: type[Handler], fault: str) -> None:
        self.url, self.kind, self.fault = url, kind, fault
        self.alive = True
        kind.dead, kind.asked = False, 0

    def call(self, call: str, timeout_s: float, **arguments: Any) -> tuple[dict[str, Any], Any]:
        if call == "address":
            return {"url": self.url, "model": "served"}, []
        if call == "chat":
            return {"text": bytes(rendered(arguments["messages"])).decode()}, []
        if call == "encode":
            return {"ids": [list(text.encode()) for text in arguments["texts"]]}, []
        if call == "tokenize":
            return {"ids": [rendered(m, self.fault) for m in arguments["conversations"]]}, []
        if call == "told":
            if self.kind.dead:
                raise RunError("ENG-003", "the server ended with status -9")
            path = {"step": 1, "path": "stock", "reason": "prefill", "requests": 1, "tokens": 999,
                    "prefill_tokens": 999}  # fmt: skip
            return {"scheduled": [[0, 999]], "log": [path], "drafted": []}, []
        return ({"peak_rss_mib": None} if call == "end" else {}), []

    def close(self) -> None:
        self.alive = False

    kill = close


class Lab:
    """A setting whose engine's server is the one of this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "") -> None:
        self.kind = type("Served", (Handler,), {"fault": fault, "bodies": []})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.kind)
        self.http.daemon_threads = True
        Thread(target=self.http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self.http.server_port}/v1/chat/completions"

        def start(_: Engine, launch: Any) -> Session:
            switch = "x" if launch.arm == "base" else "y"
            info = SessionInfo(switch=switch, fingerprint={"engine": "x", "timer": "none"})
            kept: Any = Kept(url, self.kind, fault)
            return Session(kept, info, launch.call_timeout_s)

        monkeypatch.setattr(Engine, "start", start)
        (folder / "aime.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.said: list[str] = []
        self.setting = Setting(
            claim=claim(),
            target_name="t",
            engine=Engine(name="x", module="none", server="none"),
            checkpoint=None,
            checkpoint_sha256="0",
            source_sha256=lambda: "0",
            logs=folder,
            folder=folder,
            seed=0,
            timeout_s=1.5 if fault == "answers_nothing" else 30.0,
            say=self.said.append,
            journal=folder / "journal",
        )
        FROZEN.extend(() if FROZEN else prepare(self.setting))
        manifest.write(FROZEN[0], folder)

    def items(self) -> list[ItemRecord]:
        self.records = run(self.setting, "candidate", "aime25")
        return [record for record in self.records if isinstance(record, ItemRecord)]


def claim() -> Claim:
    wanted = {"file": "aime.jsonl", "answer_tokens": TOKENS, "samples": 2, "temperature": 0.6,
              "server": True}  # fmt: skip
    target = {
        "engine": "x",
        "role": "development",
        "grid": {"batch": [2], "context_tokens": [8]},
        "evals": {"aime25": wanted},
    }
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


@pytest.fixture
def lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Lab]:
    made = Lab(tmp_path, monkeypatch, getattr(request, "param", ""))
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_a_server_answers_through_lm_evals_client(lab: Lab) -> None:
    found = lab.items()
    assert len({(r.item, r.repeat) for r in found}) == len(found) == 12
    assert {r.error for r in found} == {""}
    assert {len(r.token_ids) for r in found} == {TOKENS}
    assert {r.gaps[0] for r in found} == {0.75}
    # Each sample has a seed of its own, the same alone and among others.
    assert len({r.seed for r in found}) == 6
    assert {body["seed"] for body in lab.kind.bodies} == {r.seed for r in found}
    assert all(body["top_p"] == 1.0 and body["max_tokens"] == TOKENS for body in lab.kind.bodies)
    (session,) = [r for r in lab.records if isinstance(r, SessionRecord)]
    assert (session.variant, session.switch) == ("server", "y")
    assert any(isinstance(r, PathRecord) for r in lab.records)
    (counted,) = [r for r in lab.records if isinstance(r, MonitorRecord)]
    assert counted.values["boots"] == 1


@pytest.mark.parametrize(
    ("lab", "told", "failed"),
    [
        ("returns_errors", "500", 6),
        ("no_json", "failed: ", 12),
        ("truncates", "another prompt of 20 tokens", 12),
        ("echoes", "the prompt again", 12),
        ("ignores_max_tokens", "were asked for", 12),
        ("ignores_temperature", "are all equal", 12),
        ("answers_nothing", "EVL-007: no end within 1.5 s", 1),
    ],
    indirect=["lab"],
)
def test_a_server_that_fails_leaves_every_item_with_its_error(
    lab: Lab, told: str, failed: int
) -> None:
    found = lab.items()
    assert len({(r.item, r.repeat) for r in found}) == len(found) == 12
    bad = [r for r in found if r.error]
    assert all(told in r.error for r in bad), [r.error for r in bad]
    assert len(bad) == failed


@pytest.mark.parametrize("lab", ["dies"], indirect=True)
def test_restarts_are_counted_and_nothing_is_asked_twice(lab: Lab) -> None:
    found = lab.items()
    assert len({(r.item, r.repeat) for r in found}) == len(found) == 12
    (counted,) = [r for r in lab.records if isinstance(r, MonitorRecord)]
    sessions = [r.session for r in lab.records if isinstance(r, SessionRecord)]
    # Each boot dies at its third request, until none is left.
    assert counted.values["boots"] == len(set(sessions)) == MAX_BOOTS
    assert {r.error for r in found if "ENG-003" in r.error}
    assert 0 < sum(not r.error for r in found) < 12


@pytest.mark.parametrize("lab", ["changes_template"], indirect=True)
def test_another_template_is_told_before_anything_is_asked(lab: Lab) -> None:
    with pytest.raises(UsageError) as told:
        lab.items()
    assert told.value.code == "EVL-006"
    assert lab.kind.bodies == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"choices": []}, "no whole chat completion"),
        ({"choices": [{"token_ids": None}]}, "no whole chat completion"),
        ({"choices": [{}, {}]}, "no whole chat completion"),
        ({"usage": None}, "no whole chat completion"),
        ({"usage": {"prompt_tokens": 3}}, "another prompt of 2 tokens, 2 asked"),
        ({"prompt_token_ids": [5, 7]}, "another prompt"),
        ({"prompt_token_ids": None}, "no whole chat completion"),
    ],
)
def test_what_is_no_whole_answer_to_what_was_asked_is_told(
    change: dict[str, Any], told: str
) -> None:
    from fasttrack.evals.external.served import _answer

    request = Request(prompt=(5, 6))
    choice = {"token_ids": [7], "message": {"content": "a"}, "finish_reason": "stop",
              "logprobs": None}  # fmt: skip
    whole: dict[str, Any] = {
        "choices": [choice], "usage": {"prompt_tokens": 2}, "prompt_token_ids": [5, 6],
    }  # fmt: skip
    assert _answer(request, [whole]).token_ids == (7,)
    bad = _answer(request, [{**whole, **change}])
    assert bad.token_ids == () and told in bad.finish_reason
    assert "failed" in _answer(request, OSError("x")).finish_reason
    assert "failed" in _answer(request, None).finish_reason


def test_an_engine_without_a_server_is_told() -> None:
    from fasttrack.evals.external.served import served

    with pytest.raises(UsageError) as told:
        served(Engine(name="x", module="none"))
    assert told.value.code == "EVL-009"
