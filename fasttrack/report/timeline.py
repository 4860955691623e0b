"""The section on what ran when in a decode step of both arms: one picture, its numbers and names.

Owns what is drawn and said; layers are found in `layers`. Read by `build`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from fasttrack.report import layers
from fasttrack.report.layers import Part
from fasttrack.report.model import Section, Span, Table, Timeline, clean, number, table
from fasttrack.report.names import short
from fasttrack.report.tally import Tally
from fasttrack.schema import Arm, TimelineRecord
from fasttrack.schema import Timeline as Seen

TITLE = "Layer timeline"
ARMS: Mapping[Arm, str] = {"base": "stock", "candidate": "specialised"}
MOST_LISTED = 60
"""Spans of a layer whose names are listed."""
MOST_DRAWN = 400
"""Spans of a lane; beyond, the picture says nothing that a reader could see."""
COLUMNS = (
    "Part", "Arm", "Layers", "Spans", "us", "Busy us", "Overlap us", "Gaps us", "Told apart by",
)  # fmt: skip


def section(tally: Tally) -> Section:
    """Per kind of decoder layer the typical one of each arm, on one scale."""
    told: dict[Arm, Seen] = {}
    for arm in ARMS:
        record = tally.timelines.get(arm)
        if record is None or record.seen is None:
            return Section(TITLE, (clean(_lacking(arm, record)),))
        told[arm] = record.seen
    cuts = {arm: layers.cut(seen) for arm, seen in told.items()}
    rows: list[tuple[object, ...]] = []
    lanes = []
    kinds = list(dict.fromkeys(told["base"].kinds))
    headlines = []
    listed = []
    for kind in kinds:
        pair = {
            arm: layers.typical(parts, kind)
            for arm, (parts, _) in cuts.items()
            if any(part.kind == kind for part in parts)
        }
        for arm, part in pair.items():
            parts, how = cuts[arm]
            rows.append(_row(f"{kind} layer", arm, _count(parts, kind), part, how))
            lanes.append(_lane(f"{ARMS[arm]}, {kind} layer {part.layer}", told[arm], part))
        if len(pair) == len(ARMS):
            said = " against ".join(_said(told[arm], part) for arm, part in pair.items())
            headlines.append(f"{kind} layer: {said}.")
            listed.append(_names(kind, pair))
    for arm, seen in told.items():
        rows.append(_row("whole step", arm, len(seen.kinds), layers.whole(seen), "-"))
    if not headlines:
        lanes = [_lane(ARMS[arm], seen, layers.whole(seen)) for arm, seen in told.items()]
    figure = Timeline("A decode step of stock, and of the specialised path", tuple(lanes))
    drawn = all(len(spans) <= MOST_DRAWN for _, spans in lanes)
    return Section(
        TITLE,
        tuple(clean(text, 800) for text in (*headlines, *_notes(told, cuts))),
        (table(COLUMNS, rows, len(rows)), *listed),
        figure if drawn else None,
    )


def _lacking(arm: Arm, record: TimelineRecord | None) -> str:
    why = record.problem if record else "the path stage left none"
    return f"No timeline of {ARMS[arm]}: {why}."


def _count(parts: tuple[Part, ...], kind: str) -> int:
    return sum(part.kind == kind for part in parts)


def _row(name: str, arm: Arm, count: int, part: Part, how: str) -> tuple[object, ...]:
    measured = (part.us, part.busy_us, part.overlap_us, part.gaps_us)
    return (name, ARMS[arm], count, len(part.spans), *map(_us, measured), how)


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else number(max(0.0, value))


def _said(seen: Seen, part: Part) -> str:
    return f"{len(part.spans)} {_noun(seen)} {_us(part.us)} us"


def _noun(seen: Seen) -> str:
    return "kernels" if seen.device == "cuda" else "operators"


def _names(kind: str, pair: Mapping[Arm, Part]) -> Table:
    """What ran in the layer of each arm, in order, with its microseconds; arms side by side."""
    ran = [
        [(short(span.name), _us(span.end_us - span.start_us)) for span in part.spans]
        for part in pair.values()
    ]
    rows = [
        (place, *(cell for one in both for cell in one))
        for place, both in enumerate(zip_longest(*ran, fillvalue=("-", "-")), start=1)
    ]
    arms = (cell for arm in pair for cell in (f"{kind} layer, {ARMS[arm]}", "us"))
    return table(("", *arms), rows, MOST_LISTED)


def _lane(label: str, seen: Seen, part: Part) -> tuple[str, tuple[Span, ...]]:
    spans = tuple(
        Span(clean(short(span.name), 80), span.start_us, span.end_us, span.track)
        for span in part.from_its_start()
    )
    return clean(f"{label}: {_said(seen, part)}"), apart(spans)


def apart(spans: Sequence[Span]) -> tuple[Span, ...]:
    """The same on as many tracks as it takes for none to lie on another: those of a stream that
    overlap get tracks of their own, below each other."""
    found: list[Span] = []
    first = 0
    for stream in sorted({span.track for span in spans}):
        ends: list[float] = []
        for span in sorted((s for s in spans if s.track == stream), key=lambda s: s.start_us):
            free = next((at for at, end in enumerate(ends) if end <= span.start_us), len(ends))
            ends[free : free + 1] = [span.end_us]
            found.append(replace(span, track=first + free))
        first += len(ends)
    return tuple(found)


def _notes(told: Mapping[Arm, Seen], cuts: Mapping[Arm, tuple[object, str]]) -> Iterator[str]:
    yield (
        "One steady decode step of the smallest batch and context in the path stage, under the "
        "device's profiler: the step, and of each kind of layer the one, of the median length. "
        "Kinds are named by the cache they keep. On a CPU a span is an operator that no other "
        "called, or a compiled unit. Spans that overlap may hold waiting: a dependent launch "
        "begins before the one ahead has ended. The profiler costs time in every span, so that "
        "this shows what runs, not how much is gained: speed is judged without it, from other "
        "sessions."
    )
    for arm, seen in told.items():
        under = sorted(us for _, us in seen.steps)[len(seen.steps) // 2]
        plain = sorted(seen.plain_us)[len(seen.plain_us) // 2] if seen.plain_us else None
        text = f"{ARMS[arm]}: a step of {_us(under)} us under the profiler"
        text += f", engine steps of {_us(plain)} us without." if plain is not None else "."
        if not cuts[arm][1]:
            share = len(seen.spans) / max(1, len(seen.kinds))
            text += (
                " Its layers could not be told apart: no module of the model was seen around its "
                f"spans, and no names occur once per layer. On average {share:.1f} "
                f"{_noun(seen)} and {_us(under / max(1, len(seen.kinds)))} us a layer, all else in "
                "the step included."
            )
        yield text
