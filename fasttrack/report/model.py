"""What a report consists of, before any format: headings, sentences and tables of plain text.

Owns the value types and `clean`, through which every text from a bundle passes: bundles are hostile
input, and a name must not be able to move a cursor, reorder a line or hide itself. Writers add the
escaping of their own format and do no arithmetic. Made by `build`; read by the writers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from fasttrack.schema import Outcome, Verdict

MAX_TEXT = 400
DETAIL = "Detail"
"""Heading of the column that narrow writers may leave out."""
_HIDDEN = frozenset({"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"})


@dataclass(frozen=True)
class Table:
    """Rows of cleaned text under their headings. `omitted` rows were left out by `build`."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    omitted: int = 0


@dataclass(frozen=True)
class Section:
    """One heading. `folded` sections are details that a reader opens on purpose."""

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Report:
    """One page about one bundle: what was not tested, the answer, then the evidence."""

    title: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    """Name and value: claim, target, tier, baseline."""
    untested: tuple[str, ...]
    outcome: Outcome
    headline: str
    """The answer in one sentence."""
    not_admissible_because: tuple[str, ...]
    sections: tuple[Section, ...]
    verdicts: tuple[Verdict, ...]


def clean(text: object, limit: int = MAX_TEXT) -> str:
    """A text as one visible line of at most `limit` characters.

    Control, formatting (bidirectional, zero-width), private and unassigned characters are spelt
    out; line breaks and tabs become spaces.
    """
    words = " ".join(str(text).split())
    visible = "".join(
        f"\\u{ord(c):04x}" if unicodedata.category(c) in _HIDDEN else c for c in words[: limit + 1]
    )
    return visible if len(visible) <= limit else visible[: limit - 1] + "…"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], most: int) -> Table:
    """A table of at most `most` rows."""
    kept = tuple(tuple(clean(cell) for cell in row) for row in rows[:most])
    return Table(tuple(columns), kept, max(0, len(rows) - most))
