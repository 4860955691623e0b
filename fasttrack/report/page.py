"""The parts every page is made of: the document with its policy, tables, chips, escaping.

Owns what makes a page safe to open: every text is cleaned and escaped, nothing is loaded from
anywhere, and the content security policy allows inline style and, by its digest, at most one script
of our own. Nothing needs that script to be read. Read by `html` and `site`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html import escape

from fasttrack.report.model import Table, clean, rank
from fasttrack.report.style import CSS
from fasttrack.schema import State

MOST_TEXT = 2000
GENERATOR = "fasttrack"
NOTHING = "-"
RANKS = ("bad", "open", "good")
_STATE = "|".join(state.value for state in State)
_STATES = re.compile(rf"(\d+ )?({_STATE})(, \d+ ({_STATE}))*\Z")
_NUMBER = re.compile(r"[-+±]?[\d.,]+(e[-+]?\d+)?(x| %)?( to [-+]?[\d.,]+(e[-+]?\d+)?x?)?\Z|-\Z")
_ONE_LINE = 26
_SENTENCE = 40


def text(value: object) -> str:
    """Any text, cleaned and escaped, for content and for attributes in double quotes."""
    return escape(clean(value, MOST_TEXT), quote=True)


def document(title: str, body: str, script: str = "") -> str:
    """A whole page around trusted markup."""
    allowed = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    if script:
        sha256 = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
        allowed += f"; script-src 'sha256-{sha256}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<meta name="generator" content="{GENERATOR}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{text(title)}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n"
        f"<main>\n{body}</main>\n"
        f"{f'<script>{script}</script>' + chr(10) if script else ''}</body>\n</html>\n"
    )


def chip(state: State) -> str:
    """A state as a coloured word."""
    return f'<span class="chip {RANKS[rank(state)]}">{state.value}</span>'


def items(lines: Sequence[str]) -> str:
    """A list of sentences."""
    return "<ul>\n" + "".join(f"<li>{text(line)}</li>\n" for line in lines) + "</ul>\n"


def grid(table: Table, label: str) -> str:
    """A table in a box of its own, which scrolls where the page is too narrow for it.

    `label` names the box for those who cannot see it. On narrow pages tables with sentences are
    stacked instead; the explicit roles keep them tables for screen readers.
    """
    kinds = [_kind([row[index] for row in table.rows]) for index in range(len(table.columns))]
    stacked = table.prose or "say" in kinds
    parts = [
        f'<div class="box" role="region" tabindex="0" aria-label="{text(label)}">\n'
        f'<table role="table"{_class("stack" if stacked else "")}>\n'
        '<thead role="rowgroup"><tr role="row">'
    ]
    parts += [
        f'<th role="columnheader" scope="col"{_class(kind)}>{text(name)}</th>'
        for name, kind in zip(table.columns, kinds, strict=True)
    ]
    parts.append('</tr></thead>\n<tbody role="rowgroup">\n')
    for row in table.rows:
        parts.append('<tr role="row">')
        for name, cell, kind in zip(table.columns, row, kinds, strict=True):
            parts.append(_field(name, cell, kind, first=name == table.columns[0], stacked=stacked))
        parts.append("</tr>\n")
    parts.append("</tbody>\n</table>\n</div>\n")
    if table.omitted:
        parts.append(f'<p class="soft">{table.omitted} more rows: fasttrack report FILE --json</p>')
    return "".join(parts)


def _field(name: str, cell: str, kind: str, *, first: bool, stacked: bool) -> str:
    shown = _cell(cell, name)
    if first:
        return f'<th role="rowheader" scope="row"{_class(kind)}>{shown}</th>'
    if stacked:
        kind = f"{kind} none".strip() if cell == NOTHING else kind
        return f'<td role="cell" data-name="{text(name)}"{_class(kind)}><div>{shown}</div></td>'
    return f'<td role="cell"{_class(kind)}>{shown}</td>'


def _kind(cells: Sequence[str]) -> str:
    if all(_NUMBER.match(cell) for cell in cells):
        return "num"
    longest = max(map(len, cells), default=0)
    return "one" if longest <= _ONE_LINE else "say" if longest >= _SENTENCE else ""


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _cell(cell: str, column: str) -> str:
    if _STATES.match(cell):
        return " ".join(_counted(part) for part in cell.split(", "))
    if column == "Command" and cell != NOTHING:
        return f'<code class="copy">{text(cell)}</code>'
    return text(cell).replace("/", "/<wbr>")


def _counted(part: str) -> str:
    """``3 PASS`` or ``PASS`` as a chip."""
    count, _, name = part.rpartition(" ")
    state = chip(State(name))
    return state.replace(f">{name}<", f">{count} {name}<") if count else state
