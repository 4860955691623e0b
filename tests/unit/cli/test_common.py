"""Protects the one error handler and the progress: every way out of a command has a status, data
goes to stdout and talk to stderr, and the estimate follows what units really took."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.exceptions import TyperException

from fasttrack.cli import common
from fasttrack.errors import EnvironmentUnmet, FasttrackError, RunError, UsageError
from fasttrack.schema import Outcome, State


def run(raised: BaseException | None, *arguments: str, returns: Any = None) -> int:
    """A command that raises or returns something."""

    def command(**_: Any) -> Any:
        if raised is not None:
            raise raised
        return returns

    return common.run(command, list(arguments))


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (UsageError("CLM-003", "x"), 2),
        (EnvironmentUnmet("ENV-001", "x"), 4),
        (RunError("ENG-003", "x"), 5),
        (TyperException("no such option"), 2),
        (typer.Exit(3), 3),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
        (BrokenPipeError(), 5),
        (ZeroDivisionError("x"), 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_way_out_has_a_status(raised: BaseException, status: int) -> None:
    assert run(raised, "command") == status


def test_ctrl_c_while_a_class_is_made_is_ctrl_c() -> None:
    """Python raises a RuntimeError then: half a second of imports is full of such moments."""

    class Late:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    assert common.run(lambda **_: type("Made", (), {"late": Late()}), ["command"]) == 130


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (3, 3), (True, 1)])
def test_a_command_s_own_status(returned: Any, status: int) -> None:
    assert run(None, returns=returned) == status


ERROR = RunError("ENG-003", "killed by SIGKILL", cell="features-base", detail="last words")


def test_people_read_code_cause_and_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    run(ERROR)
    out, err = capsys.readouterr()
    assert out == ""
    assert "ENG-003 [features-base]: killed by SIGKILL" in err
    assert "last words" in err
    assert "next: fasttrack explain ENG-003" in err


@pytest.mark.parametrize("raised", [ERROR, ZeroDivisionError("x"), KeyboardInterrupt()])
def test_programs_read_one_object(
    capsys: pytest.CaptureFixture[str], raised: BaseException
) -> None:
    status = run(raised, "--json")
    error = json.loads(capsys.readouterr().out)["error"]
    assert set(error) == {"code", "cell", "cause", "next", "exit_status"}
    assert error["exit_status"] == status


@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_tracebacks_only_with_v(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    trace = "Traceback (most recent call last):\n  the child's"
    raised = RunError("ENG-002", "x", detail=trace)
    run(raised)
    assert "Traceback" not in capsys.readouterr().err
    run(raised, flag)
    assert capsys.readouterr().err.count("Traceback") == 2


def test_the_verbose_flag_is_not_handed_on() -> None:
    seen: list[Any] = []

    def command(args: list[str], **_: Any) -> None:
        seen.append(args)

    common.run(command, ["validate", "-v", "demo", "--verbose"])
    assert seen == [["validate", "demo"]]


def test_output_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    run(FasttrackError("INT-001", "y" * 100_000, detail="z" * 100_000))
    assert len(capsys.readouterr().err) < 3 * common.MAX_TALK


def test_brackets_in_a_cause_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    run(UsageError("CLM-003", "targets[red].grid [/nonsense]"))
    assert "targets[red].grid [/nonsense]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "status"),
    [(State.PASS, 0), (State.FAIL, 1), (State.INCONCLUSIVE, 3), (State.INVALID, 3)],
)
def test_outcome_to_status(state: State, status: int) -> None:
    assert common.exit_status(Outcome(state=state, admissible=False)) == status


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (12.4, "12 s"), (59.6, "1 min 00 s"), (260, "4 min 20 s"), (3900, "1 h 05 min")],
)
def test_clock(seconds: float, text: str) -> None:
    assert common.clock(seconds) == text


def test_the_estimate_is_scaled_by_what_units_took(capsys: pytest.CaptureFixture[str]) -> None:
    bar = common.Bar()
    bar.begin(100.0, 4, 1)
    bar.unit("perf", "block0", 25.0)
    bar.say("starting")
    # Planned for 25 s, took 50: the 75 s that are left will take 150.
    bar.finished("perf", "block0", 25.0, 50.0)
    bar.close()
    err = capsys.readouterr().err
    assert "4 units of work, 1 of them already there; about 1 min 40 s" in err
    assert "[2/4] perf: block0" in err
    assert "took 50.0 s; 2 min 30 s left" in err


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(common, "talk", lambda: terminal)
    bar = common.Bar()
    bar.begin(10.0, 2, 0)
    bar.unit("perf", "block0", 5.0)
    bar.say("decode/batch=1")
    bar.finished("perf", "block0", 5.0, 5.0)
    bar.close()
    assert "perf" in screen.getvalue()
    assert "ETA" in screen.getvalue()


def test_the_first_target_is_the_default() -> None:
    assert common.pick_target(["a", "b"], None) == "a"
    assert common.pick_target(["a", "b"], "b") == "b"
