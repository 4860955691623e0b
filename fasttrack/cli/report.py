"""`fasttrack report`: show a result file or a run folder again, in any format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fasttrack.bundle.atomic import write_bytes
from fasttrack.bundle.reader import open_bundle
from fasttrack.cli.common import JsonOption, emit, talk
from fasttrack.report import html, junit, markdown, terminal
from fasttrack.report.build import build
from fasttrack.report.model import Report


def report(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .ftb result file, or a run folder.")
    ],
    html_file: Annotated[
        Path | None,
        typer.Option("--html", help="Write the whole page here: one file, nothing else needed."),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Write the verdicts as JUnit XML here.")
    ] = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page as Markdown, at most 60 kB.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show what a result file says, in short; `verify` judges the file and `gate` the evidence."""
    with open_bundle(path) as bundle:
        made = build(bundle)
    written = [
        (file, render(made))
        for file, render in ((html_file, html.render), (junit_file, junit.render))
        if file is not None
    ]
    for file, text in written:
        write_bytes(file, text.encode("utf-8"))
    if as_json:
        emit(_json_value(made, path), as_json=True)
    elif as_markdown:
        emit(markdown.render(made).rstrip("\n"), as_json=False)
    elif written:
        emit("\n".join(str(file) for file, _ in written), as_json=False)
    else:
        terminal.show(made, Console(file=sys.stdout, highlight=False), path)
    talk().print(
        f"Verdicts are shown as stored; fasttrack verify {path} recomputes them.",
        markup=False, soft_wrap=True, style="dim",
    )  # fmt: skip
    return 0


def _json_value(made: Report, path: Path) -> dict[str, object]:
    return {
        "file": str(path),
        "title": made.title,
        "facts": dict(made.facts),
        "untested": list(made.untested),
        "headline": made.headline,
        "outcome": made.outcome.json_value(),
        "sections": [
            {
                "title": section.title,
                "paragraphs": list(section.paragraphs),
                "tables": [
                    {"columns": list(table.columns), "rows": [list(row) for row in table.rows]}
                    for table in section.tables
                ],
            }
            for section in made.sections
        ],
        "verdicts": [verdict.json_value() for verdict in made.verdicts],
    }
