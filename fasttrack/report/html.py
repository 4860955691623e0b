"""A report as one HTML file that shows itself: no script, nothing loaded, safe to open.

Owns the order of the page: untested scope, the answer, what is claimed, then the sections, then
every verdict. Read by the CLI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fasttrack.report import figures, page
from fasttrack.report.model import (
    Curves,
    Forest,
    Report,
    Section,
    Timeline,
    interval,
    rank,
    shown,
    table,
    times,
)
from fasttrack.schema import Verdict

MOST_VERDICTS = 600
NOTHING_LISTED = ("Nothing was listed.",)


def render(report: Report) -> str:
    """The page."""
    return page.document(f"{report.title}: {report.outcome.state.value}", "".join(_body(report)))


def _body(report: Report) -> Iterator[str]:
    yield f'<p class="brow">fasttrack evidence report</p>\n<h1>{page.text(report.title)}</h1>\n'
    yield '<div class="head">\n<div>\n<h2>Not tested by this run</h2>\n'
    yield page.items(report.untested or NOTHING_LISTED)
    yield "</div>\n"
    yield from _answer(report)
    yield "</div>\n"
    sections = [*report.sections, _every_verdict(report.verdicts)]
    yield '<nav aria-label="Contents">\n'
    for index, section in enumerate(sections):
        yield f'<a href="#s{index}">{page.text(section.title)}</a>\n'
    yield "</nav>\n"
    yield '<section aria-label="Claim">\n<h2>What is claimed</h2>\n'
    yield f"<p>{page.text(report.summary)}</p>\n<dl>\n"
    for name, value in report.facts:
        yield f"<div><dt>{page.text(name)}</dt><dd>{page.text(value)}</dd></div>\n"
    yield "</dl>\n</section>\n"
    for index, section in enumerate(sections):
        yield from _section(section, f"s{index}")
    yield (
        "<footer><p>Verdicts are shown as the result file stores them. "
        "<code>fasttrack verify FILE</code> recomputes every one of them from the raw records in "
        "the same file, without a GPU and without a network.</p></footer>\n"
    )


def _answer(report: Report) -> Iterator[str]:
    outcome = report.outcome
    admissible = "admissible" if outcome.admissible else "not admissible"
    yield f'<div class="answer {page.RANKS[rank(outcome.state)]}">\n<h2>Outcome</h2>\n'
    told = f'<span class="chip{"" if outcome.admissible else " open"}">{admissible}</span>'
    yield f'<p class="state">{outcome.state.value} {told}</p>\n'
    yield f"<p>{page.text(report.headline)}</p>\n"
    if report.not_admissible_because:
        yield "<p>Not admissible because:</p>\n" + page.items(report.not_admissible_because)
    yield "</div>\n"


def _section(section: Section, name: str) -> Iterator[str]:
    title = page.text(section.title)
    if section.folded:
        rows = sum(len(item.rows) for item in section.tables)
        yield f'<details id="{name}">\n<summary>{title} <span>{rows} rows</span></summary>\n'
    else:
        yield f'<section id="{name}" aria-labelledby="{name}-h">\n<h2 id="{name}-h">{title}</h2>\n'
    for paragraph in section.paragraphs:
        yield f"<p>{page.text(paragraph)}</p>\n"
    if section.figure is not None:
        yield _figure(section.figure, f"{name}-f")
    for item in section.tables:
        yield page.grid(item, section.title)
    yield "</details>\n" if section.folded else "</section>\n"


def _figure(figure: Forest | Timeline | Curves, name: str) -> str:
    if isinstance(figure, Forest):
        return figures.forest(figure, name)
    if isinstance(figure, Curves):
        return figures.curves(figure, name)
    return figures.timeline(figure, name)


def _every_verdict(verdicts: Sequence[Verdict]) -> Section:
    rows = []
    for verdict in verdicts[:MOST_VERDICTS]:
        say = shown(verdict)
        unit = "" if say is times or verdict.estimate is None else f" {verdict.unit}"
        rows.append(
            (verdict.rule, verdict.cell, verdict.state.value, verdict.reason,
             say(verdict.estimate) + unit, interval(verdict), say(verdict.floor), verdict.n,
             verdict.detail, verdict.next or "-")
        )  # fmt: skip
    columns = (
        "Rule", "Cell", "State", "Reason", "Estimate", "Interval", "Floor or limit", "n", "Detail",
        "Command",
    )  # fmt: skip
    omitted = max(0, len(verdicts) - MOST_VERDICTS)
    shown_rows = replace(table(columns, rows, MOST_VERDICTS), omitted=omitted)
    return Section("Every verdict", tables=(shown_rows,), folded=True)
