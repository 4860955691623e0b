"""What every command shares: data to stdout, talk to stderr, one error handler, progress."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from typer.exceptions import TyperException

from fasttrack.errors import EXIT_CRASH, EXIT_USAGE, FasttrackError, Interrupted, UsageError
from fasttrack.pipeline import Watcher
from fasttrack.schema import Outcome, State

MAX_TALK = 2000
"""Characters of a cause or a log tail that are shown; the rest is in the log."""
SILENCE_S = 30.0
"""Between two lines about the inside of a unit, where there is no bar."""
TRACEBACK = "Traceback (most recent call last)"

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object to stdout; talk stays on stderr.")
]
FolderArgument = Annotated[
    Path, typer.Argument(help="The optimization's folder: the one that holds claim.toml.")
]
TargetOption = Annotated[
    str | None,
    typer.Option(help="Target of the claim. Default: its first."),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(help="Policy file (TOML). Default: the policy built into this release."),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE",
        help="Data file of an external eval that lies elsewhere than claim.toml says (repeatable).",
    ),
]

AgentOption = Annotated[
    bool,
    typer.Option(
        "--agent",
        help="Also replay agent traffic, through aiperf; tier smoke leaves it out otherwise.",
    ),
]


def data_files(values: list[str] | None) -> dict[str, Path]:
    """What `DataOption` was given, by eval; raises `UsageError` USE-001 for another form."""
    found = {}
    for value in values or ():
        name, equals, file = value.partition("=")
        if not (name and equals and file) or name in found:
            raise UsageError(
                "USE-001", f"--data {value!r} is not NAME=FILE, or names an eval twice",
                next_step="--data aime25=/data/aime25.jsonl",
            )  # fmt: skip
        found[name] = Path(file)
    return found


def talk() -> Console:
    """A console on stderr."""
    return Console(stderr=True, highlight=False)


def emit(value: Any, *, as_json: bool) -> None:
    """Print data to stdout: as one JSON object, or as plain text when `value` is text."""
    if as_json:
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    elif isinstance(value, str):
        sys.stdout.write(value + "\n")


def exit_status(outcome: Outcome) -> int:
    """0 when every rule passed, 1 when one failed, 3 when something stayed open."""
    return {State.PASS: 0, State.FAIL: 1}.get(outcome.state, 3)


def pick_target(targets: list[str], wanted: str | None) -> str:
    """The wanted target, or the first: a claim lists its most accessible target first."""
    return wanted or targets[0]


def run(command: Callable[..., Any], arguments: list[str]) -> int:
    """Run a parsed command; every error leaves as code, cause, next step and exit status."""
    verbose = bool({"-v", "--verbose"} & set(arguments))
    as_json = "--json" in arguments
    try:
        status = command(
            args=[a for a in arguments if a not in ("-v", "--verbose")],
            standalone_mode=False,
            prog_name="fasttrack",
        )
        return int(status or 0)
    except FasttrackError as error:
        _show(error, verbose=verbose, as_json=as_json)
        return error.exit_status
    except typer.Exit as stop:
        return int(stop.exit_code)
    except TyperException as error:
        if not arguments:
            talk().print(error.format_message(), markup=False)
            return EXIT_USAGE
        usage = UsageError("USE-001", error.format_message(), next_step="fasttrack --help")
        _show(usage, verbose=verbose, as_json=as_json)
        return usage.exit_status
    except (KeyboardInterrupt, typer.Abort):
        stopped = _interrupted()
        _show(stopped, verbose=verbose, as_json=as_json)
        return stopped.exit_status
    except BrokenPipeError:
        return EXIT_CRASH
    except Exception as error:
        crash = FasttrackError("INT-001", f"{type(error).__name__}: {error}")
        # Python turns Ctrl-C in the middle of an import into a RuntimeError, if a class is just
        # being made.
        ended = _interrupted() if isinstance(error.__cause__, KeyboardInterrupt) else crash
        _show(ended, verbose=verbose, as_json=as_json)
        return ended.exit_status


def _interrupted() -> Interrupted:
    return Interrupted("RUN-001", "interrupted", next_step="repeat the command")


def _show(error: FasttrackError, *, verbose: bool, as_json: bool) -> None:
    if as_json:
        emit({"error": error.diagnostics()}, as_json=True)
    console = talk()
    where = f" [{error.cell}]" if error.cell else ""
    console.print(f"{error.code}{where}: {error.cause[:MAX_TALK]}", markup=False, style="red")
    # A log's tail is worth quoting; a traceback, also one inside a log, is for those who ask.
    if error.detail and (verbose or TRACEBACK not in error.detail):
        console.print(error.detail[-MAX_TALK:], markup=False, style="dim")
    console.print(f"next: {error.next_step}", markup=False)
    console.print(f"what it means: fasttrack explain {error.code}", markup=False, style="dim")
    if verbose:
        console.print(traceback.format_exc(), markup=False)


class Bar(Watcher):
    """Progress with an ETA: a bar on a terminal, plain lines elsewhere.

    The estimate starts from the plan and is scaled by what finished units really took.
    """

    def __init__(self) -> None:
        self._console = talk()
        self._live = self._console.is_terminal
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._total = self._planned = self._took = 0.0
        self._units = self._done = 0
        self._started = self._said = time.monotonic()

    def begin(self, total_s: float, units: int, done: int) -> None:
        """See `Watcher`."""
        self._total, self._units, self._done = total_s, units, done
        kept = f", {done} of them already there" if done else ""
        self._console.print(f"{units} units of work{kept}; about {clock(total_s)}")
        if self._live:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.fields[stage]}", style="bold"),
                BarColumn(),
                TextColumn("{task.fields[eta]}"),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task(
                "", total=max(total_s, 1e-9), stage="", eta=f"ETA {clock(total_s)}"
            )
            self._progress.start()

    def unit(self, stage: str, name: str, cost_s: float) -> None:
        """See `Watcher`."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, stage=stage)
        else:
            self._console.print(f"[{self._done + 1}/{self._units}] {stage}: {name}", markup=False)

    def say(self, text: str) -> None:
        """See `Watcher`."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text[:60])
        elif time.monotonic() - self._said >= SILENCE_S:
            self._said = time.monotonic()
            self._console.print(f"    {text}", markup=False)

    def note(self, text: str) -> None:
        """See `Watcher`."""
        self._console.print(text, markup=False)

    def finished(self, stage: str, name: str, cost_s: float, took_s: float) -> None:
        """See `Watcher`."""
        self._done += 1
        self._planned += cost_s
        self._took += took_s
        rate = self._took / self._planned if self._planned else 1.0
        left = clock(max(0.0, self._total - self._planned) * rate)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, advance=cost_s, eta=f"ETA {left}")
        else:
            self._console.print(
                f"    {stage} {name} took {took_s:.1f} s; {left} left", markup=False
            )

    def close(self) -> None:
        """Put the terminal back."""
        if self._progress is not None:
            self._progress.stop()


def clock(seconds: float) -> str:
    """``1 h 05 min``, ``4 min 20 s``, ``12 s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"
