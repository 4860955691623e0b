"""A report on a terminal: the brief sections in about two screens, and where to find the rest.

Tables show, explanations stay in the longer forms. Nothing is wrapped inside a table: what does not
fit a line ends in an ellipsis. Texts are printed as plain `Text`, never as console markup. Read by
the CLI.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from rich.box import SIMPLE
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from fasttrack.report.model import Report, Section, Table
from fasttrack.schema import State
from fasttrack.schema.verdict import BAD, GOOD

MOST_ROWS = 24
MOST_ITEMS = 8
"""Entries of a list, as opposed to rows of a table."""
SHORT = 16
"""Longest text that is never cut; names of states never are."""
MOST_TEXT = 200
"""Characters of what is said about one verdict: two lines."""
_GOOD = frozenset(state.value for state in GOOD)
_BAD = frozenset(state.value for state in (*BAD, State.NOT_EXERCISED))
_STATES = frozenset(state.value for state in State)


def show(report: Report, console: Console, path: Path | None = None) -> None:
    """Print a report; `path` is the file to name where more can be read."""
    console.print(Text(report.title, style="bold"))
    console.print(Text("Not tested by this run:", style="bold"))
    _list(report.untested or ("nothing was listed",), console)
    state = report.outcome.state.value
    admissible = "admissible" if report.outcome.admissible else "not admissible"
    console.print()
    console.print(Text(f"{state}, {admissible}. ", style=_style(state)) + Text(report.headline))
    _list([f"not admissible: {reason}" for reason in report.not_admissible_because], console)
    console.print()
    for name, value in report.facts:
        fact = Text(f"{name:<9} ", style="dim") + Text(value)
        console.print(fact, no_wrap=True, overflow="ellipsis")
    for section in report.sections:
        if section.brief:
            _section(section, console)
    rest = [section.title for section in report.sections if not section.brief]
    file = quote(str(path)) if path is not None else "FILE"
    console.print()
    if rest:
        console.print(Text(f"Also in the report: {', '.join(rest)}.", style="dim"))
    all_of_it = Text(f"All of it: fasttrack report {file} --html report.html", style="dim")
    console.print(all_of_it, soft_wrap=True)


def _list(lines: Sequence[str], console: Console) -> None:
    for line in lines[:MOST_ITEMS]:
        console.print(Padding(Text(f"- {line}"), (0, 0, 0, 2), expand=False))
    if len(lines) > MOST_ITEMS:
        console.print(Text(f"  and {len(lines) - MOST_ITEMS} more", style="dim"))


def _section(section: Section, console: Console) -> None:
    console.print()
    console.print(Text(section.title, style="bold underline"))
    if not section.tables:
        _list(section.paragraphs, console)
    for table in section.tables:
        most = MOST_ITEMS if table.prose else MOST_ROWS
        if table.prose:
            for row in table.rows[:most]:
                _item(row, console)
        else:
            console.print(grid(table, most))
        omitted = table.omitted + max(0, len(table.rows) - most)
        if omitted:
            console.print(Text(f"{omitted} more", style="dim"))


def _item(row: Sequence[str], console: Console) -> None:
    """A row of sentences: state, subject and what was seen; then how to go on."""
    state, *subject, seen, cure = row
    head = Text(state, _style(state)) + Text(f"  {' '.join(subject)}: {seen}"[:MOST_TEXT])
    console.print(head)
    console.print(Text(f"    {cure}", "dim"), no_wrap=True, overflow="ellipsis")


def grid(table: Table, most: int = MOST_ROWS) -> Grid:
    """A table with one line per row."""
    shape = Grid(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    rows = table.rows[:most]
    for index, name in enumerate(table.columns):
        fixed = all(len(row[index]) <= SHORT or row[index] in _STATES for row in rows)
        shape.add_column(Text(name.replace(" ", "\n") if fixed else name), no_wrap=fixed)
    for row in rows:
        shape.add_row(
            *(Text(cell, _style(cell), no_wrap=True, overflow="ellipsis") for cell in row)
        )
    return shape


def _style(text: str) -> str:
    if text not in _STATES:
        return ""
    return "green" if text in _GOOD else "red" if text in _BAD else "yellow"
