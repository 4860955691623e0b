"""A report on a terminal: the same sections, at most `MOST_ROWS` rows of each table.

Texts are printed as plain `Text`, never as console markup. Read by the CLI.
"""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from fasttrack.report.model import Report, Section, Table
from fasttrack.schema import State
from fasttrack.schema.verdict import BAD, GOOD

MOST_ROWS = 24
_GOOD = frozenset(state.value for state in GOOD)
_BAD = frozenset(state.value for state in (*BAD, State.NOT_EXERCISED))
_STATES = frozenset(state.value for state in State)


def show(report: Report, console: Console) -> None:
    """Print a report; folded sections are named, not shown."""
    console.print(Text(report.title, style="bold"))
    console.print(Text("Not tested by this run:", style="bold"))
    for line in report.untested or ("nothing was listed",):
        console.print(Padding(Text(f"- {line}"), (0, 0, 0, 2)))
    state = report.outcome.state.value
    admissible = "admissible" if report.outcome.admissible else "not admissible"
    console.print()
    console.print(Text(f"{state}, {admissible}. ", style=_style(state)) + Text(report.headline))
    for reason in report.not_admissible_because:
        console.print(Padding(Text(f"- not admissible: {reason}"), (0, 0, 0, 2)))
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
        console.print(_grid(table))
        omitted = table.omitted + max(0, len(table.rows) - MOST_ROWS)
        if omitted:
            console.print(Text(f"{omitted} more rows; fasttrack report FILE --json", style="dim"))


def _grid(table: Table) -> Grid:
    grid = Grid(box=SIMPLE, pad_edge=False, show_edge=False)
    for column in table.columns:
        grid.add_column(Text(column), overflow="fold")
    for row in table.rows[:MOST_ROWS]:
        grid.add_row(*(Text(cell, style=_style(cell)) for cell in row))
    return grid


def _style(text: str) -> str:
    if text not in _STATES:
        return ""
    return "green" if text in _GOOD else "red" if text in _BAD else "yellow"
