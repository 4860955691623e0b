"""Figures as inline SVG that fits any width: places are percentages, sizes of text are not.

Owns scales, ticks and shapes. What a plot shows is also in the table below it, and in its title and
description. Read by `html`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fasttrack.report.model import Curves, Forest, Mark, Timeline, rank, times
from fasttrack.report.page import RANKS, text
from fasttrack.schema import State

LEFT, RIGHT = 24.0, 98.0
"""Percent of the width between which a plot lies; labels stand to its left."""
ROW = 26
TOP = 48
BOTTOM = 26
FARTHEST = 64.0
"""Ratios beyond this, or below its inverse, are drawn at the edge; the text says what they are."""
NARROWEST = 1.01
MOST_TICKS = 5
WIDE_RANGE = 4.0
STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SHAPES = {
    State.FASTER.value: "M-5-6 7 0-5 6z",
    State.SLOWER.value: "M5-6-7 0 5 6z",
    State.EQUIVALENT.value: "M-4.5-4.5h9v9h-9z",
}
CIRCLE = "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z"
LEGEND = (
    "Triangles: faster (right) or slower (left) than stock beyond the noise. Square: equivalent. "
    "Circle: no answer. Lines: interval. Shaded: noise floor of the cell."
)
TRACK = 20
NAMED = 4.0
"""Percent of the width a span needs for a name: some six letters on a page of usual width."""
PANEL = 110
SMALLEST = 1e-8
"""Amounts below this, zero among them, are drawn here."""
CURVES_LEGEND = (
    "Across: context in tokens. Line: candidate against stock. Dashes: stock against itself in "
    "another batch."
)


def forest(figure: Forest, name: str) -> str:
    """A forest plot; `name` makes its ids unique on the page."""
    low, high = _range(figure.marks)
    height = TOP + ROW * len(figure.marks) + BOTTOM
    end = height - BOTTOM
    one = _place(1.0, low, high)
    told = "; ".join(f"{m.label}: {_told(m)}" for m in figure.marks)
    parts = [
        _open(name, height, figure.title, f"Ratios, logarithmic; 1 is stock. {told}"),
        _text(0, 13, figure.label, "soft"),
        _text(RIGHT, 30, f"{figure.better} →", "soft", "end"),
    ]
    if one > LEFT + 16:
        parts.append(_text(LEFT, 30, f"← {figure.worse}", "soft"))
    for value in ticks(low, high):
        x = _place(value, low, high)
        kind = "unit" if value == 1 else "rule"
        parts.append(f'<line class="{kind}" x1="{x}%" x2="{x}%" y1="{TOP - 10}" y2="{end + 4}"/>')
        parts.append(_text(x, end + 18, f"{value:g}x", "soft", "middle"))
    for index, mark in enumerate(figure.marks):
        parts += _row(mark, TOP + ROW * index + ROW // 2, low, high)
    parts.append("</svg>\n")
    return f"<figure>\n{''.join(parts)}<figcaption>{text(LEGEND)}</figcaption>\n</figure>\n"


def _row(mark: Mark, y: int, low: float, high: float) -> Iterator[str]:
    kind = RANKS[rank(State(mark.state))]
    yield f"<g><title>{text(mark.label)}: {text(_told(mark))}</title>"
    yield _text(0, y + 4, mark.label)
    if mark.floor is not None and mark.floor >= 1:
        left, right = _place(1 / mark.floor, low, high), _place(mark.floor, low, high)
        yield (
            f'<rect class="band" x="{left}%" width="{round(right - left, 2)}%" '
            f'y="{y - ROW // 2 + 1}" height="{ROW - 2}"/>'
        )
    if mark.estimate is None:
        yield _text(LEFT + 2, y + 4, mark.state, kind)
    else:
        yield _text(LEFT - 2, y + 4, _numbers(mark), "wide", "end")
        if mark.lower is not None and mark.upper is not None:
            left, right = _place(mark.lower, low, high), _place(mark.upper, low, high)
            yield _line(kind, left, right, y, y)
            yield _line(kind, left, left, y - 5, y + 5)
            yield _line(kind, right, right, y - 5, y + 5)
        shape = SHAPES.get(mark.state, CIRCLE)
        at = _place(mark.estimate, low, high)
        yield f'<svg x="{at}%" y="{y}"><path class="{kind}" d="{shape}"/></svg>'
    yield "</g>\n"


def _line(kind: str, x1: float, x2: float, y1: int, y2: int) -> str:
    return f'<line class="reach {kind}" x1="{x1}%" x2="{x2}%" y1="{y1}" y2="{y2}"/>'


def _told(mark: Mark) -> str:
    if mark.estimate is None:
        return mark.state
    return f"{_numbers(mark)} {mark.state}"


def _numbers(mark: Mark) -> str:
    return f"{times(mark.estimate)} [{times(mark.lower)}, {times(mark.upper)}]"


def _range(marks: Sequence[Mark]) -> tuple[float, float]:
    """Ends of the axis: around 1 and everything drawn, with some room."""
    values = [1 / NARROWEST, NARROWEST]
    for mark in marks:
        values += [v for v in (mark.estimate, mark.lower, mark.upper) if v is not None]
        if mark.floor is not None and mark.floor >= 1:
            values += [mark.floor, 1 / mark.floor]
    logs = [math.log(_inside(value)) for value in values]
    room = 0.06 * (max(logs) - min(logs))
    return math.exp(min(logs) - room), math.exp(max(logs) + room)


def _inside(value: float) -> float:
    return min(max(value, 1 / FARTHEST), FARTHEST)


def _place(value: float, low: float, high: float) -> float:
    """Percent of the width, on a logarithmic axis."""
    share = math.log(_inside(value) / low) / math.log(high / low)
    return round(LEFT + (RIGHT - LEFT) * min(max(share, 0.0), 1.0), 2)


def ticks(low: float, high: float) -> list[float]:
    """Round values of an axis from `low` to `high`, among them 1; doublings where it is wide."""
    if high / low > WIDE_RANGE:
        powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
        return [2.0**power for power in powers]
    for step in STEPS:
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < MOST_TICKS:
            found = [round(step * n, 3) for n in range(first, last + 1)]
            return found if 1.0 in found else sorted([*found, 1.0])
    return [1.0]


def timeline(figure: Timeline, name: str) -> str:
    """Lanes of kernels on one axis in microseconds, each track of a lane on a line of its own."""
    longest = max((s.end_us for _, spans in figure.lanes for s in spans), default=0.0) or 1.0
    parts = []
    y = 6
    for label, spans in figure.lanes:
        parts.append(_text(0, y + 12, label))
        y += 20
        for index, span in enumerate(spans):
            left, right = (_share(v / longest) for v in (span.start_us, span.end_us))
            odd = " odd" if index % 2 else ""
            named = _text(0, 13, span.name, "wide") if right - left >= NAMED else ""
            parts.append(
                f'<svg class="clip" x="{left}%" y="{y + TRACK * span.track}" '
                f'width="{round(max(right - left, 0.0), 3)}%" height="{TRACK - 2}">'
                f"<title>{text(span.name)}: {span.end_us - span.start_us:.3g} us</title>"
                f'<rect class="span{odd}" width="100%" height="100%"/>'
                f"{named}</svg>\n"
            )
        y += TRACK * (1 + max((span.track for span in spans), default=0)) + 10
    parts.append(_text(0, y + 8, "0 us", "soft"))
    parts.append(_text(100, y + 8, f"{longest:.3g} us", "soft", "end"))
    said = "; ".join(label for label, _ in figure.lanes)
    return f"<figure>\n{_open(name, y + 14, figure.title, said)}{''.join(parts)}</svg>\n</figure>\n"


def curves(figure: Curves, name: str) -> str:
    """One panel per eval on shared axes; a reader sees at which context the arms part."""
    points = [point for _, some in figure.panels for point in some]
    amounts = [max(amount, SMALLEST) for _, *both in points for amount in both]
    low, high = (math.floor(math.log10(min(amounts))), math.ceil(math.log10(max(amounts)) + 0.01))
    first, last = (math.log2(end(point[0] for point in points)) for end in (min, max))

    def x(context: int) -> float:
        share = (math.log2(context) - first) / ((last - first) or 1.0)
        return round(LEFT + share * (RIGHT - LEFT), 2)

    def y(amount: float) -> int:
        share = (math.log10(max(amount, SMALLEST)) - low) / (high - low)
        return round(PANEL - 10 - share * (PANEL - 46))

    parts = []
    for number, (label, some) in enumerate(figure.panels):
        top = number * PANEL
        parts.append(_text(0, top + 14, label))
        for power in range(low, high + 1):
            at = top + y(10.0**power)
            parts.append(f'<line class="rule" x1="{LEFT}%" x2="{RIGHT}%" y1="{at}" y2="{at}"/>')
            if power in (low, high):
                parts.append(_text(LEFT - 1, at + 4, f"1e{power} {figure.unit}", "soft", "end"))
        for column, kind in ((1, "stock"), (2, "mine")):
            for one, other in pairwise(some):
                parts.append(
                    f'<line class="{kind}" x1="{x(one[0])}%" x2="{x(other[0])}%" '
                    f'y1="{top + y(one[column])}" y2="{top + y(other[column])}"/>'
                )
    bottom = PANEL * len(figure.panels)
    for power in range(math.ceil(first), math.floor(last) + 1):
        parts.append(_text(x(1 << power), bottom + 12, f"{1 << power}", "soft", "middle"))
    said = "; ".join(
        f"{label}: " + ", ".join(f"at {at} {stock:.2g} and {mine:.2g}" for at, stock, mine in some)
        for label, some in figure.panels
    )
    opened = _open(name, bottom + 20, figure.title, f"Stock and candidate. {said}")
    return (
        f"<figure>\n{opened}{''.join(parts)}</svg>\n"
        f"<figcaption>{text(CURVES_LEGEND)}</figcaption>\n</figure>\n"
    )


def _share(value: float) -> float:
    return round(100 * min(max(value, 0.0), 1.0), 3)


def _open(name: str, height: int, title: str, description: str) -> str:
    return (
        f'<svg role="img" width="100%" height="{height}" aria-labelledby="{name}-t {name}-d">\n'
        f'<title id="{name}-t">{text(title)}</title>\n'
        f'<desc id="{name}-d">{text(description)}</desc>\n'
    )


def _text(x: float, y: int, value: str, kind: str = "", anchor: str = "start") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}%" y="{y}" text-anchor="{anchor}"{shown}>{text(value)}</text>\n'
