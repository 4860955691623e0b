"""Protects a session from one bad request: errors travel as code, message and traceback, bounded,
and the child goes on answering."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fasttrack.engine.channel import Child
from fasttrack.engine.serve import MAX_MESSAGE, Coded, describe
from fasttrack.errors import RunError, UsageError

CHILD = """
import sys
from fasttrack.engine.serve import Coded, serve

def give(**arguments):
    return arguments

def raises(kind):
    raise {
        "value": ValueError("bad\\nvalue"),
        "exit": SystemExit(0),
        "coded": Coded("CLM-006", "x"),
        "interrupt": KeyboardInterrupt(),
        "long": RuntimeError("y" * 100_000),
    }[kind]

def unserialisable():
    return {"x": object()}

def blobs(blobs=()):
    return {"got": [len(b) for b in blobs]}, list(blobs)

handlers = {"give": give, "raises": raises, "unserialisable": unserialisable, "blobs": blobs}
serve(handlers, "ENG-006", left_alone=lambda: print("left alone", flush=True))
"""


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """One child for the whole module: that it survives every test is the point."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "served.py").write_text(CHILD)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    made = Child("served", log=folder / "log", env={"PYTHONPATH": path})
    yield made
    made.close()
    assert made._process.returncode == 0
    assert made.log.read_text() == "left alone\n"


@pytest.mark.parametrize(
    ("kind", "says"),
    [("value", "ValueError: bad\nvalue"), ("exit", "SystemExit: 0"), ("interrupt", "Keyboard")],
)
def test_an_error_without_a_code_gets_the_default(child: Child, kind: str, says: str) -> None:
    with pytest.raises(RunError) as caught:
        child.call("raises", 20.0, kind=kind)
    assert caught.value.code == "ENG-006"
    assert caught.value.cause.startswith(says)
    assert caught.value.detail is not None and "raises" in caught.value.detail


def test_a_coded_error_keeps_its_code_and_bare_message(child: Child) -> None:
    with pytest.raises(UsageError) as caught:
        child.call("raises", 20.0, kind="coded")
    assert (caught.value.code, caught.value.cause) == ("CLM-006", "x")


@pytest.mark.parametrize("call", ["unserialisable", "no_such_call"])
def test_calls_that_cannot_be_answered(child: Child, call: str) -> None:
    with pytest.raises(RunError) as caught:
        child.call(call, 20.0)
    assert caught.value.code == "ENG-006"


def test_wrong_arguments(child: Child) -> None:
    with pytest.raises(RunError, match="unexpected keyword"):
        child.call("raises", 20.0, colour="red")


def test_messages_are_bounded(child: Child) -> None:
    with pytest.raises(RunError) as caught:
        child.call("raises", 20.0, kind="long")
    assert len(caught.value.cause) <= MAX_MESSAGE
    assert caught.value.detail is not None and len(caught.value.detail) <= MAX_MESSAGE


def test_the_child_still_answers(child: Child) -> None:
    assert child.call("give", 20.0, a=[1]) == ({"a": [1]}, [])
    assert child.call("blobs", 20.0, [b"ab", b""]) == ({"got": [2, 0]}, [b"ab", b""])
    assert child.call("blobs", 20.0) == ({"got": []}, [])


def test_description_of_an_error() -> None:
    assert describe(Coded("ENG-007", "why"), "ENG-006")["code"] == "ENG-007"
    assert describe(KeyError("x"), "ENG-006")["message"] == "KeyError: 'x'"
