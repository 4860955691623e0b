"""What a report consists of, before any format: headings, sentences, tables and figures.

Owns the value types, how numbers are written, how states are ranked, and `clean`, through which
every text from a bundle passes: bundles are hostile input, and a name must not be able to move a
cursor, reorder a line or hide itself. Writers add the escaping of their own format and do no
arithmetic. Made by `build`; read by the writers.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fasttrack.schema import Outcome, State, Verdict
from fasttrack.schema.verdict import BAD, GOOD

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
    prose: bool = False
    """Whether rows are sentences, which narrow writers show one below the other."""


@dataclass(frozen=True)
class Mark:
    """One row of a forest plot: a ratio with its interval, where there is one.

    `floor` is the ratio above 1 below which a difference is noise.
    """

    label: str
    state: str
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    floor: float | None = None


@dataclass(frozen=True)
class Forest:
    """Ratios around 1, one row each; `label` says what the rows are."""

    title: str
    label: str
    better: str
    """What lies to the right of 1, in a word."""
    worse: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Span:
    """One kernel of a timeline, in microseconds from its start; `track` is its stream."""

    name: str
    start_us: float
    end_us: float
    track: int = 0


@dataclass(frozen=True)
class Timeline:
    """What ran when, one lane per arm: (label, spans)."""

    title: str
    lanes: tuple[tuple[str, tuple[Span, ...]], ...]


Panel = tuple[str, tuple[tuple[int, float, float], ...]]
"""Label and points: (context in tokens, stock against itself, candidate against stock)."""


@dataclass(frozen=True)
class Curves:
    """Amounts of both arms over a context, both axes logarithmic, one panel per eval."""

    title: str
    unit: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Section:
    """One heading with what stands below it, in this order: text, figure, tables.

    A figure shows nothing that the tables do not say, so writers without pictures leave it out.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figure: Forest | Timeline | Curves | None = None
    brief: bool = False
    """Whether short forms show it too."""
    folded: bool = False
    """Whether it is a detail that a reader opens on purpose."""


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


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], most: int, *, prose: bool = False
) -> Table:
    """A table of at most `most` rows."""
    kept = tuple(tuple(clean(cell) for cell in row) for row in rows[:most])
    return Table(tuple(columns), kept, max(0, len(rows) - most), prose)


def rank(state: State) -> int:
    """0 bad, 1 open, 2 good."""
    if state in BAD or state is State.NOT_EXERCISED:
        return 0
    return 2 if state in GOOD else 1


def urgency(verdict: Verdict) -> tuple[int, bool]:
    """Sort key: what decides the outcome badly first, what is good last."""
    return rank(verdict.state), not verdict.deciding


def number(value: float | None) -> str:
    """Three digits, or `-` for no value."""
    return "-" if value is None else f"{value:.3g}"


def times(value: float | None) -> str:
    """A ratio, or `-` for no value; below 2, where per mille are looked at, one digit more."""
    if value is None:
        return "-"
    digits = "3f" if 0.1 <= value < 2 else "2f" if 2 <= value < 100 else "3g"
    return f"{value:.{digits}}x"


def shown(verdict: Verdict) -> Callable[[float | None], str]:
    """How a verdict's numbers are written."""
    return times if verdict.rule in ("speed", "numerics", "agent") else number


def interval(verdict: Verdict) -> str:
    """``1.98x to 2.02x``, or `-` where a verdict has no interval."""
    if verdict.lower is None or verdict.upper is None:
        return "-"
    say = shown(verdict)
    return f"{say(verdict.lower)} to {say(verdict.upper)}"


def noise(verdict: Verdict) -> str:
    """A speed verdict's noise floor, in percent around 1."""
    return "-" if verdict.floor is None else f"±{(verdict.floor - 1) * 100:.1f} %"
