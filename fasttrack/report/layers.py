"""From one profiled decode step to its decoder layers: what ran in each, overlap and gaps.

Layers are those that the model's modules marked. A path that does not run through them is cut at
names that the step shows exactly once per layer, kind by kind and in the order of the model's
layers; such a cut may lie inside a layer, so that a part ends where the next one's mark begins.
Where neither is there, layers are not told apart. Pure; read by `timeline`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from fasttrack.report.model import Span
from fasttrack.report.names import short
from fasttrack.schema import Timeline

MOST_MARKS = 40
"""Names per kind of layer that are tried as marks."""


@dataclass(frozen=True)
class Part:
    """Spans of one decoder layer, in order of their starts; times are microseconds."""

    layer: int
    kind: str
    spans: tuple[Span, ...]

    @property
    def us(self) -> float:
        """From the first start to the last end."""
        return max(span.end_us for span in self.spans) - self.spans[0].start_us

    @property
    def busy_us(self) -> float:
        """While at least one span runs."""
        total, end = 0.0, self.spans[0].start_us
        for span in self.spans:
            total += max(0.0, span.end_us - max(end, span.start_us))
            end = max(end, span.end_us)
        return total

    @property
    def gaps_us(self) -> float:
        """While nothing runs between two of them."""
        return self.us - self.busy_us

    @property
    def overlap_us(self) -> float:
        """What the spans take together beyond the time in which any runs."""
        return sum(span.end_us - span.start_us for span in self.spans) - self.busy_us

    def from_its_start(self) -> tuple[Span, ...]:
        """Its spans, the first one starting at 0."""
        first = self.spans[0].start_us
        return tuple(
            Span(span.name, span.start_us - first, span.end_us - first, span.track)
            for span in self.spans
        )


def whole(seen: Timeline) -> Part:
    """The step as one part, which belongs to no layer."""
    return Part(-1, "step", tuple(_spans(seen)))


def cut(seen: Timeline) -> tuple[tuple[Part, ...], str]:
    """The parts of all decoder layers, and how they are told apart; none where they are not."""
    spans = _spans(seen)
    found: dict[int, list[Span]] = {}
    for span, (*_, layer) in zip(spans, seen.spans, strict=True):
        if layer is not None:
            found.setdefault(layer, []).append(span)
    if sorted(found) == list(range(len(seen.kinds))):
        parts = tuple(Part(n, seen.kinds[n], tuple(own)) for n, own in sorted(found.items()))
        return parts, "the model's modules"
    marks = _marks([span.name for span in spans], seen.kinds)
    if marks is None:
        return (), ""
    starts = [at for at, span in enumerate(spans) if span.name in marks]
    sizes = {
        kind: min(
            (b - a for a, b, k in zip(starts, starts[1:], seen.kinds, strict=False) if k == kind),
            default=len(spans),
        )
        for kind in set(seen.kinds)
    }
    ends = [*starts[1:], starts[-1] + sizes[seen.kinds[-1]]]
    parts = tuple(
        Part(n, seen.kinds[n], tuple(spans[a:b]))
        for n, (a, b) in enumerate(zip(starts, ends, strict=True))
    )
    told = " and ".join(dict.fromkeys(map(short, marks)))
    return parts, f"{told}, once per layer"


def typical(parts: Iterable[Part], kind: str) -> Part:
    """The one of its kind of the median length."""
    own = sorted((part for part in parts if part.kind == kind), key=lambda part: part.us)
    return own[len(own) // 2]


def _spans(seen: Timeline) -> list[Span]:
    return [
        Span(seen.names[name], start, start + took, track)
        for name, start, took, track, _ in seen.spans
    ]


def _marks(names: Sequence[str], kinds: Sequence[str]) -> tuple[str, ...] | None:
    """The first names, one per kind, whose order in the step is that of the layers."""
    if not kinds:
        return None
    counts = Counter(names)
    wanted = Counter(kinds)
    choices = [
        [name for name in dict.fromkeys(names) if counts[name] == count][:MOST_MARKS]
        for count in wanted.values()
    ]
    for chosen in product(*choices):
        kind_of = dict(zip(chosen, wanted, strict=True))
        if len(kind_of) == len(wanted):
            order = [kind_of[name] for name in names if name in kind_of]
            if order == list(kinds):
                return chosen
    return None
