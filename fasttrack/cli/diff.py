"""`fasttrack diff`: two result files side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from fasttrack.bundle.reader import open_bundle
from fasttrack.cli.common import JsonOption, emit, talk
from fasttrack.errors import EXIT_FAIL, EXIT_PASS
from fasttrack.report import terminal
from fasttrack.report.compare import ABSENT, Comparison, compare
from fasttrack.report.model import Table, interval, table, times
from fasttrack.schema import Verdict
from fasttrack.verify import steps

MOST_ROWS = 60


def diff(
    before: Annotated[
        Path, typer.Argument(metavar="A", help="The earlier .ftb result file, or run folder.")
    ],
    after: Annotated[Path, typer.Argument(metavar="B", help="The later one.")],
    as_json: JsonOption = False,
) -> int:
    """Compare two runs: what differed about them, speed per cell, and verdicts that changed.

    Result files are verified first; run folders, which nobody signed yet, are taken as they are.
    Exit status: 0 no verdict got worse, 1 at least one did, 6 a file cannot be trusted.
    """
    for path in (before, after):
        if not path.is_dir():
            steps.verify(path)
    with open_bundle(before) as one, open_bundle(after) as two:
        found = compare(one, two)
    if as_json:
        emit(found.json_value(), as_json=True)
    else:
        _show(found, Console(file=sys.stdout, highlight=False))
    if found.worse:
        talk().print(f"{len(found.worse)} verdicts got worse", style="red")
    return EXIT_FAIL if found.worse else EXIT_PASS


def _show(found: Comparison, console: Console) -> None:
    for title, shown in _tables(found):
        console.print(Text(title, style="bold underline"))
        if shown.rows:
            console.print(terminal.grid(shown, MOST_ROWS))
        else:
            console.print(Text("nothing", style="dim"))
        if shown.omitted:
            console.print(Text(f"{shown.omitted} more: --json", style="dim"))
        console.print()


def _tables(found: Comparison) -> Iterator[tuple[str, Table]]:
    rows = [(item.area, item.name, item.before, item.after) for item in found.differences]
    yield "What was different", table(("Where", "What", "A", "B"), rows, MOST_ROWS)
    overlaps = {True: "yes", False: "no", None: ABSENT}
    speeds = [
        (item.cell, *_speed(item.before), *_speed(item.after), overlaps[item.overlap])
        for item in found.speeds
    ]
    heads = ("Cell", "A", "Interval A", "B", "Interval B", "They overlap")
    yield "Speed", table(heads, speeds, MOST_ROWS)
    changes = [
        (item.direction, item.rule, item.cell, item.before or ABSENT, item.after or ABSENT)
        for item in found.changes
    ]
    yield "Verdicts that changed", table(("Change", "Rule", "Cell", "A", "B"), changes, MOST_ROWS)


def _speed(verdict: Verdict | None) -> tuple[str, str]:
    return (times(verdict.estimate), interval(verdict)) if verdict else (ABSENT, ABSENT)
