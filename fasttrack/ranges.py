"""Sets of integers as text, ``"3-5,9"``: how step logs and state records name slots and rows."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[int, int]]


def text(numbers: Iterable[int]) -> str:
    """Distinct integers in compact form: {3, 4, 5, 9} is ``3-5,9``."""
    spans: Spans = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return _text(spans)


def spans(told: str) -> Spans:
    """Sorted, disjoint spans, both ends included; raises ValueError for anything else."""
    made: Spans = []
    for part in filter(None, told.split(",")):
        begin, _, end = part.partition("-")
        made.append((int(begin), int(end or begin)))
        if made[-1][0] > made[-1][1]:
            raise ValueError(f"{part!r} ends before it begins")
    merged: Spans = []
    for first, last in sorted(made):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def outside(told: str, allowed: Iterable[str]) -> str:
    """What of `told` no set of `allowed` holds, as text; empty if nothing. By spans, so that a
    range of any length costs nothing."""
    whole = spans(",".join(filter(None, allowed)))
    left = []
    for first, last in spans(told):
        at = first
        for begin, end in whole:
            if end < at or begin > last:
                continue
            if begin > at:
                left.append((at, begin - 1))
            at = end + 1
        if at <= last:
            left.append((at, last))
    return _text(left)


def _text(spans: Spans) -> str:
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
