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
    candidate_control: ItemRecord | None = None
    """The candidate in the composition of `control`."""
    replay: ItemRecord | None = None
    """The candidate, forced to say what base said."""
    replay_control: ItemRecord | None = None
    """The same of base itself, in another batch composition."""

    @property
    def alone(self) -> tuple[ItemRecord, ItemRecord] | None:
        """Base and candidate, one request at a time; None unless both were asked."""
        if self.control is None or self.candidate_control is None:
            return None
        return self.control, self.candidate_control


def pair(records: Sequence[ItemRecord]) -> tuple[Pair, ...]:
    """Pairs in item order.

    Raises `Unpaired` for missing items, double answers, transport errors, unequal prompts, or
    a prompt of which one arm found more in its cache than the other.
    """
    names = ("base", "candidate", "control", "candidate_control", "replay_control", "replay")
    groups: dict[str, dict[str, ItemRecord]] = {name: {} for name in names}
    for record in records:
        if record.error:
            raise Unpaired(f"item {record.item} in {record.arm} failed: {record.error}"[:300])
        name: str = record.arm
        if record.repeat == "control":
            name = "control" if record.arm == "base" else "candidate_control"
        elif record.repeat == "replay":
            name = "replay_control" if record.arm == "base" else "replay"
        if record.item in groups[name]:
            raise Unpaired(f"item {record.item} was answered twice in {name}")
        groups[name][record.item] = record
    base, candidate, control, again, *replays = (groups[name] for name in names)
    odd = sorted(base.keys() ^ candidate.keys())
    odd = odd or sorted(set(control).union(again, *replays) - base.keys())
    if odd or not base:
        raise Unpaired(f"items answered in one arm only: {', '.join(odd[:5]) or 'all'}")
    for item, record in base.items():
        asked = [group[item] for group in (candidate, control, again, *replays) if item in group]
        for other in asked:
            if other.prompt_sha256 != record.prompt_sha256:
                raise Unpaired(f"item {item} was asked with different prompts")
        alone = again.get(item), control.get(item)
        for mine, stock in ((candidate[item], record), alone):
            if mine and stock and mine.cached_tokens != stock.cached_tokens:
                raise Unpaired(f"item {item} met different caches")
    return tuple(
        Pair(
            base[item],
            candidate[item],
            control.get(item),
            again.get(item),
            groups["replay"].get(item),
            groups["replay_control"].get(item),
        )
        for item in sorted(base)
    )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Index of the first unequal token; the shorter length when one is a prefix of the other."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
