"""`fasttrack report`: show a result file or a run folder again, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasttrack.bundle.atomic import write_bytes
from fasttrack.bundle.reader import open_bundle
from fasttrack.cli.common import JsonOption, emit, talk
from fasttrack.report import junit, markdown, terminal
from fasttrack.report.build import build
from fasttrack.report.model import Report


def report(
    path: Annotated[Path, typer.Argument(help="A .ftb result file, or a run folder.")],
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the page as Markdown to stdout.")
    ] = False,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Also write the verdicts as JUnit XML here.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the Markdown page here.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Show what a result file says; `verify` judges the file and `gate` the evidence."""
    with open_bundle(path) as bundle:
        made = build(bundle)
    if out is not None:
        write_bytes(out, markdown.render(made).encode("utf-8"))
    if junit_file is not None:
        write_bytes(junit_file, junit.render(made).encode("utf-8"))
    if as_json:
        emit(_json_value(made, path), as_json=True)
    elif as_markdown:
        emit(markdown.render(made).rstrip("\n"), as_json=False)
    else:
        console = talk()
        terminal.show(made, console)
        console.print(f"\nVerdicts are shown as stored; fasttrack verify {path} recomputes them.",
                      markup=False, soft_wrap=True, style="dim")  # fmt: skip
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
