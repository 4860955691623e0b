"""Protects rooms from a child's answers: what is not the expected noun is ENG-005, a start that
fails is told as such, and no child outlives its session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fasttrack.engine import base
from fasttrack.engine.base import Engine, Launch, Request, SessionInfo, check_switch
from fasttrack.engine.channel import Child
from fasttrack.errors import FasttrackError, RunError, UsageError
from fasttrack.schema import Target

INFO = {"switch": "auto", "fingerprint": {"engine": "x"}}
ANSWER = {"token_ids": [1], "text": "a", "finish_reason": "length"}
TARGET = Target(engine="x", role="development", grid={"batch": [1], "context_tokens": [8]})


class Scripted:
    """Stands in for a child: answers from a script, and knows whether it was stopped."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {"start": INFO, "end": {"peak_rss_mib": 7.0}, **answers}
        self.calls: list[str] = []
        self.log = Path("child.log")
        self.alive = True
        self.cell = "s"

    def call(self, call: str, timeout_s: float, **arguments: Any) -> tuple[Any, list[bytes]]:
        """The scripted answer; an exception in its place is raised."""
        self.calls.append(call)
        answer = self.answers[call]
        if isinstance(answer, BaseException):
            raise answer
        return answer, []

    def ask(self, call: str, timeout_s: float, **arguments: Any) -> str:
        """The call, to wait for."""
        return call

    def wait(self, asked: str) -> tuple[Any, list[bytes]]:
        """The scripted answer."""
        return self.call(asked, 0.0)

    def kill(self) -> None:
        """Stopped."""
        self.alive = False

    close = kill
    malformed = Child.malformed
    _error = Child._error


def start(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> tuple[Scripted, Any]:
    """A scripted child and a function that starts a session on it."""
    child = Scripted(**answers)
    monkeypatch.setattr(base, "Child", lambda *_, **__: child)
    launch = Launch("s", "base", TARGET, {}, Path("child.log"))
    return child, lambda: Engine("x", "x").start(launch)


def test_a_session_ends_its_child(monkeypatch: pytest.MonkeyPatch) -> None:
    child, begin = start(monkeypatch, encode={"ids": [[1, 2], []]})
    with begin() as session:
        assert session.encode(["ab", ""]) == [(1, 2), ()]
        assert child.alive
    assert child.calls == ["start", "encode", "end"]
    assert session.peak_rss_mib == 7.0
    assert not child.alive


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_an_error_in_the_room_ends_the_child_at_once(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    child, begin = start(monkeypatch)
    with pytest.raises(type(error)), begin():
        raise error
    assert child.calls == ["start"]
    assert not child.alive


def test_a_child_that_fails_at_the_end_is_stopped_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child, begin = start(monkeypatch, end=RunError("ENG-006", "late"))
    with pytest.raises(RunError, match="late"), begin():
        pass
    assert not child.alive


@pytest.mark.parametrize(
    ("answer", "where"),
    [
        ({}, "answers"),
        ({"answers": [ANSWER], "steps": [], "path": "no"}, "path"),
        ({"answers": [ANSWER | {"logprobs": [float("nan")]}], "steps": [], "path": []}, "logprobs"),
        ({"answers": [ANSWER | {"extra": 1}], "steps": [], "path": []}, "extra"),
        ({"answers": [ANSWER | {"token_ids": ["x"]}], "steps": [], "path": []}, "token_ids"),
    ],
)
def test_a_malformed_generation_is_a_broken_protocol(
    monkeypatch: pytest.MonkeyPatch, answer: Any, where: str
) -> None:
    child, begin = start(monkeypatch, generate=answer)
    with pytest.raises(RunError) as caught, begin() as session:
        session.generate([Request(prompt=(1,))])
    assert caught.value.code == "ENG-005"
    assert where in caught.value.cause
    assert not child.alive


@pytest.mark.parametrize(
    ("call", "answer"),
    [("encode", {"ids": "abc"}), ("encode", {}), ("end", {}), ("end", {"peak_rss_mib": "much"})],
)
def test_other_malformed_answers(monkeypatch: pytest.MonkeyPatch, call: str, answer: Any) -> None:
    child, begin = start(monkeypatch, **{"encode": {"ids": []}, call: answer})
    with pytest.raises(RunError) as caught, begin() as session:
        session.encode([])
    assert caught.value.code == "ENG-005"
    assert not child.alive


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (RunError("ENG-006", "RuntimeError: x", detail="trace"), "ENG-001"),
        (RunError("ENG-002", "x"), "ENG-002"),
        (RunError("ENG-004", "x"), "ENG-004"),
        (UsageError("CLM-006", "x"), "CLM-006"),
    ],
)
def test_a_start_that_fails(
    monkeypatch: pytest.MonkeyPatch, raised: FasttrackError, code: str
) -> None:
    child, begin = start(monkeypatch, start=raised)
    with pytest.raises(FasttrackError) as caught:
        begin()
    assert caught.value.code == code
    assert caught.value.detail == raised.detail
    assert not child.alive


def test_a_start_that_is_interrupted_or_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, expected in ((KeyboardInterrupt(), KeyboardInterrupt), ({"switch": 1}, RunError)):
        child, begin = start(monkeypatch, start=answer)
        with pytest.raises(expected):
            begin()
        assert not child.alive


def test_the_switch_must_be_in_effect() -> None:
    info = SessionInfo.model_validate(INFO)
    check_switch(info, "auto", "additional_config.x")
    for reported, told in (("auto", "'auto'"), (None, "no value")):
        with pytest.raises(UsageError) as caught:
            check_switch(
                info.model_copy(update={"switch": reported}), "fast", "additional_config.x"
            )
        assert caught.value.code == "CLM-006"
        assert f"reports {told} for additional_config.x" in caught.value.cause
