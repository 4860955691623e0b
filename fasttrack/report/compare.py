"""Two bundles side by side: what was different about the runs, and what that did to the verdicts.

Owns the comparison; nothing is measured or decided anew. A verdict got worse when it fell in the
order of `worth`, or is gone; states that are equally undecided are different, not worse. Read by
the CLI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fasttrack.bundle.reader import Bundle
from fasttrack.report.model import clean, rank
from fasttrack.report.origin import flat
from fasttrack.schema import SessionRecord, State, Verdict
from fasttrack.schema.verdict import GOOD

ABSENT = "-"
MOST_LISTED = 8
_KEPT = frozenset({State.FASTER, State.PASS, State.NON_INFERIOR})
"""The best a verdict can say; the other good states say that something is only not worse."""


@dataclass(frozen=True)
class Difference:
    """One value that the two bundles do not share."""

    area: str
    name: str
    before: str
    after: str


@dataclass(frozen=True)
class CellSpeed:
    """Speed of one cell in both bundles; None where a bundle has no verdict about it."""

    cell: str
    before: Verdict | None
    after: Verdict | None

    @property
    def overlap(self) -> bool | None:
        """Whether the intervals share a value; None unless both exist."""
        one, two = self.before, self.after
        if one is None or two is None:
            return None
        if one.lower is None or one.upper is None or two.lower is None or two.upper is None:
            return None
        return one.lower <= two.upper and two.lower <= one.upper


@dataclass(frozen=True)
class Change:
    """A verdict that says something else, is gone, or is new."""

    rule: str
    cell: str
    before: State | None
    after: State | None

    @property
    def direction(self) -> str:
        """`worse`, `better`, or `changed` where neither can be said."""
        if self.before is None or self.after is None:
            return "worse" if self.after is None else "changed"
        was, now = worth(self.before), worth(self.after)
        return "worse" if now < was else "better" if now > was else "changed"


@dataclass(frozen=True)
class Comparison:
    """Everything that differs between two bundles."""

    differences: tuple[Difference, ...]
    speeds: tuple[CellSpeed, ...]
    changes: tuple[Change, ...]

    @property
    def worse(self) -> tuple[Change, ...]:
        """Verdicts that got worse."""
        return tuple(change for change in self.changes if change.direction == "worse")

    def json_value(self) -> dict[str, Any]:
        """What `fasttrack diff --json` prints."""
        return {
            "differences": [vars(item) for item in self.differences],
            "speeds": [
                {
                    "cell": item.cell,
                    "before": item.before.json_value() if item.before else None,
                    "after": item.after.json_value() if item.after else None,
                    "overlap": item.overlap,
                }
                for item in self.speeds
            ],
            "changes": [{**vars(item), "direction": item.direction} for item in self.changes],
            "worse": len(self.worse),
        }


def worth(state: State) -> int:
    """0 bad, 1 open, 2 not worse than stock or refused as declared, 3 holds."""
    return rank(state) if state not in GOOD else 3 if state in _KEPT else 2


def compare(before: Bundle, after: Bundle) -> Comparison:
    """What changed from one bundle to the other, as they store it."""
    return Comparison(
        differences=tuple(_differences(before, after)),
        speeds=tuple(_speeds(before.verdicts, after.verdicts)),
        changes=tuple(_changes(before, after)),
    )


def _differences(before: Bundle, after: Bundle) -> Iterator[Difference]:
    for area, one, two in zip(_AREAS, _areas(before), _areas(after), strict=True):
        told_one, told_two = dict(flat(one)), dict(flat(two))
        for name in dict.fromkeys([*told_one, *told_two]):
            was, now = told_one.get(name), told_two.get(name)
            if was != now:
                yield Difference(area, clean(name), _told(was, now), _told(now, was))


_AREAS = ("claim", "policy", "plan", "run", "provenance", "engine")


def _areas(bundle: Bundle) -> tuple[Mapping[str, Any], ...]:
    return (
        bundle.claim.json_value(), bundle.policy.json_value(), bundle.plan,
        bundle.run.json_value(), bundle.provenance.json_value(), _fingerprint(bundle),
    )  # fmt: skip


def _fingerprint(bundle: Bundle) -> Mapping[str, Any]:
    """Engine build and configuration of the first session: rules demand one for all."""
    found = (r.fingerprint for r in bundle.records() if isinstance(r, SessionRecord))
    return next(found, {})


def _told(value: object, other: object) -> str:
    """A value; of a long list only how much of it is not in the other."""
    if value is None:
        return ABSENT
    if isinstance(value, list | tuple):
        if len(value) > MOST_LISTED:
            rest = other if isinstance(other, list | tuple) else ()
            known = set(map(str, rest))
            return f"{len(value)} items, {sum(str(v) not in known for v in value)} only here"
        return clean(", ".join(map(str, value)))
    return clean(value)


def _speeds(before: Sequence[Verdict], after: Sequence[Verdict]) -> Iterator[CellSpeed]:
    one, two = ({v.cell: v for v in vs if v.rule == "speed"} for vs in (before, after))
    for cell in dict.fromkeys([*one, *two]):
        pair = CellSpeed(cell, one.get(cell), two.get(cell))
        if any(v is not None and v.estimate is not None for v in (pair.before, pair.after)):
            yield pair


def _changes(before: Bundle, after: Bundle) -> Iterator[Change]:
    one, two = before.outcome.state, after.outcome.state
    if one != two:
        yield Change("outcome", "all", one, two)
    old, new = ({(v.rule, v.cell): v.state for v in b.verdicts} for b in (before, after))
    for rule, cell in dict.fromkeys([*old, *new]):
        was, now = old.get((rule, cell)), new.get((rule, cell))
        if was != now:
            yield Change(clean(rule), clean(cell), was, now)
