"""A report as Markdown for a pull request: at most `LIMIT` bytes, no markup out of a bundle.

Owns escaping for GitHub's Markdown. Besides markup and HTML, a text from a bundle must not notify
people (`@name`), link to issues (`#1`) or become a link by itself. Read by the CLI, the pipeline
and the gate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fasttrack.report.model import Report, Section, Table

LIMIT = 60_000
"""A comment on GitHub holds 65,536 characters; the rest is left for what surrounds the report."""
_ROW_LIMITS = (120, 40, 16, 6, 2, 0)
"""Rows of each table that are tried, most first; `build` cuts tables at the largest."""
_BREAK = "\u200b"
"""A zero-width space: shows nothing, and keeps what stands around it from being recognised."""
_SPECIAL = re.compile(
    r"(?P<reference>[@#](?=\w)|\bGH-(?=\d)|\bwww(?=\.))"
    r"|(?P<markup>[\\`*\[\]|~$]|^[-+#>=]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=//))"
    r"|(?P<number>^\d+)(?=[.)](\s|$))",
    re.IGNORECASE,
)
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;"})


def escape(text: str) -> str:
    """A cleaned text as Markdown that shows exactly that text and does nothing."""

    def neutral(match: re.Match[str]) -> str:
        found = match.group()
        if match["markup"]:
            return f"\\{found}"
        if match["number"]:
            return f"{found}\\"
        return f"{found}{_BREAK}"

    return _SPECIAL.sub(neutral, text).translate(_ENTITIES)


def render(report: Report) -> str:
    """The page; rows are left out, and counted, until it is at most `LIMIT` bytes."""
    for rows in _ROW_LIMITS:
        text = "\n".join(_page(report, rows)) + "\n"
        if len(text.encode("utf-8")) <= LIMIT:
            return text
    note = "\n\nThe rest did not fit. Show it with `fasttrack report FILE`.\n"
    kept = text.encode("utf-8")[: LIMIT - len(note)].decode("utf-8", errors="ignore")
    return kept.rpartition("\n")[0] + note


def _page(report: Report, rows: int) -> Iterator[str]:
    yield f"# {escape(report.title)}"
    yield ""
    yield "**Not tested by this run**"
    yield ""
    yield from (f"- {escape(text)}" for text in report.untested or ("nothing was listed",))
    yield ""
    admissible = "admissible" if report.outcome.admissible else "not admissible"
    yield f"## Outcome: {report.outcome.state.value}, {admissible}"
    yield ""
    yield escape(report.headline)
    if report.not_admissible_because:
        yield ""
        yield "Not admissible as evidence in a pull request, because:"
        yield ""
        yield from (f"- {escape(text)}" for text in report.not_admissible_because)
    yield ""
    yield escape(report.summary)
    yield ""
    yield from _table(Table(("", ""), report.facts), rows=len(report.facts))
    for section in report.sections:
        yield from _section(section, rows)


def _section(section: Section, rows: int) -> Iterator[str]:
    yield ""
    if section.folded:
        yield f"<details><summary><b>{escape(section.title)}</b></summary>"
    else:
        yield f"## {escape(section.title)}"
    for paragraph in section.paragraphs:
        yield ""
        yield escape(paragraph)
    for item in section.tables:
        yield ""
        yield from _table(item, rows)
    if section.folded:
        yield ""
        yield "</details>"


def _table(item: Table, rows: int) -> Iterator[str]:
    yield _row(item.columns)
    yield "|" + " --- |" * len(item.columns)
    yield from (_row(row) for row in item.rows[:rows])
    omitted = item.omitted + max(0, len(item.rows) - rows)
    if omitted:
        yield ""
        yield f"{omitted} more rows: `fasttrack report FILE --json`."


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"
