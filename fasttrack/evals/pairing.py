"""Join the arms' answers by item; refuse anything that is not the same question asked twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fasttrack.schema import ItemRecord


class Unpaired(ValueError):
    """The arms did not answer the same items; the message says which."""


@dataclass(frozen=True)
class Pair:
    """One item: base, candidate and, if run, base in another batch composition."""

    base: ItemRecord
    candidate: ItemRecord
    control: ItemRecord | None


def pair(records: Sequence[ItemRecord]) -> tuple[Pair, ...]:
    """Pairs in item order.

    Raises `Unpaired` for missing items, double answers, transport errors or unequal prompts.
    """
    groups: dict[str, dict[str, ItemRecord]] = {"base": {}, "candidate": {}, "control": {}}
    for record in records:
        if record.error:
            raise Unpaired(f"item {record.item} in {record.arm} failed: {record.error}"[:300])
        name = "control" if record.repeat == "control" else record.arm
        if record.item in groups[name]:
            raise Unpaired(f"item {record.item} was answered twice in {name}")
        groups[name][record.item] = record
    base, candidate, control = groups["base"], groups["candidate"], groups["control"]
    odd = sorted(base.keys() ^ candidate.keys()) or sorted(control.keys() - base.keys())
    if odd or not base:
        raise Unpaired(f"items answered in one arm only: {', '.join(odd[:5]) or 'all'}")
    for item, record in base.items():
        for other in (candidate[item], control.get(item, record)):
            if other.prompt_sha256 != record.prompt_sha256:
                raise Unpaired(f"item {item} was asked with different prompts")
    return tuple(Pair(base[item], candidate[item], control.get(item)) for item in sorted(base))


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Index of the first unequal token; the shorter length when one is a prefix of the other."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
