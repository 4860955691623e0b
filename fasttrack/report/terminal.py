"""A report on a terminal: the same sections, at most `MOST_ROWS` rows of each table.

Texts are printed as plain `Text`, never as console markup. Read by the CLI.
"""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from fasttrack.report.model import DETAIL, Report, Section, Table
from fasttrack.schema import State
from fasttrack.schema.verdict import BAD, GOOD

MOST_ROWS = 24
WIDE = 120
"""Columns from which on details fit beside the numbers."""
SHORT = 16
"""Longest text that is never broken; names of states never are."""
_GOOD = frozenset(state.value for state in GOOD)
_BAD = frozenset(state.value for state in (*BAD, State.NOT_EXERCISED))
_STATES = frozenset(state.value for state in State)


def show(report: Report, console: Console) -> None:
    """Print a report; folded sections are named, not shown."""
    console.print(Text(report.title, style="bold"))
    console.print(Text("Not tested by this run:", style="bold"))
    for line in report.untested or ("nothing was listed",):
        console.print(Padding(Text(f"- {line}"), (0, 0, 0, 2), expand=False))
    state = report.outcome.state.value
    admissible = "admissible" if report.outcome.admissible else "not admissible"
    console.print()
    console.print(Text(f"{state}, {admissible}. ", style=_style(state)) + Text(report.headline))
    for reason in report.not_admissible_because:
        console.print(Padding(Text(f"- not admissible: {reason}"), (0, 0, 0, 2), expand=False))
    console.print()
    for name, value in report.facts:
        console.print(Text(f"{name:<9} ", style="dim") + Text(value))
    for section in report.sections:
        _section(section, console)


def _section(section: Section, console: Console) -> None:
    console.print()
    console.print(Text(section.title, style="bold underline"))
    if section.folded:
        rows = sum(len(table.rows) for table in section.tables)
        console.print(Text(f"{rows} rows; fasttrack report FILE --markdown", style="dim"))
        return
    for paragraph in section.paragraphs:
        console.print(Text(paragraph))
    for table in section.tables:
        console.print(_grid(table, console.width))
        omitted = table.omitted + max(0, len(table.rows) - MOST_ROWS)
        if omitted:
            console.print(Text(f"{omitted} more rows; fasttrack report FILE --json", style="dim"))


def _grid(table: Table, width: int) -> Grid:
    """A grid; on a narrow console without the details, which "What needs attention" repeats."""
    grid = Grid(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))
    shown = [
        index
        for index, column in enumerate(table.columns)
        if width >= WIDE or column != DETAIL or len(table.columns) < 3
    ]
    rows = table.rows[:MOST_ROWS]
    for index in shown:
        short = all(len(row[index]) <= SHORT or row[index] in _STATES for row in rows)
        name = table.columns[index]
        grid.add_column(
            Text(name.replace(" ", "\n") if short else name), overflow="fold", no_wrap=short
        )
    for row in rows:
        grid.add_row(*(Text(row[index], style=_style(row[index])) for index in shown))
    return grid


def _style(text: str) -> str:
    if text not in _STATES:
        return ""
    return "green" if text in _GOOD else "red" if text in _BAD else "yellow"
