"""Every order in which blocks and warps of the experts' kernel can act, in models of what they
share.

Protects two protocols. Hidden numbers: blocks of a crew send each other those of unit after unit,
the next one's before they read the last one's, into `AHEAD` places that their reader empties; the
next launch begins with the first place again. Weights: a warp leaves a stage of the ring once it
has read it, and then the feeding thread may fill it anew. The model finds no order in which a word
is lost or mixed up, and does find one where there is a place too few, an emptying comes late, a
launch does not wait for the one before, or something is read behind the leaving. Needs no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from kimi_k3.kernels.moe.form import AHEAD

Words = tuple[int, ...]
Action = tuple[str, int, int]
"""What, number of the unit's word, the other block."""


class MixedUpError(Exception):
    """A word was overwritten, or another one's was taken for it."""


def explore(start: Any, steps: Callable[[Any], Iterable[Any]], over: Callable[[Any], bool]) -> int:
    """Visit every state; their number. Raises MixedUpError, or where all wait for ever."""
    pending, known = [start], {start}
    while pending:
        state = pending.pop()
        following = list(steps(state))
        if not following and not over(state):
            raise MixedUpError("all wait for ever")
        pending += [one for one in following if one not in known]
        known.update(following)
    return len(known)


class Crew(NamedTuple):
    """Blocks of one crew and the places between them."""

    at: tuple[int, ...]
    """How many of its actions each block has done."""
    late: tuple[frozenset[int], ...]
    """Places each block has read and not emptied."""
    places: tuple[Words, ...]
    """By reader: a word for every place and sender, 0 where it is empty."""

    def moved(self, me: int, at: int, late: frozenset[int], owner: int, row: Words) -> Crew:
        """Block `me` elsewhere, and other words in the places of `owner`."""
        return Crew(
            (*self.at[:me], at, *self.at[me + 1 :]),
            (*self.late[:me], late, *self.late[me + 1 :]),
            (*self.places[:owner], row, *self.places[owner + 1 :]),
        )


def _program(blocks: int, units: int, launches: int) -> list[Action]:
    """What a block does, in order: its word of a unit to every block, every block's of the unit
    before, those emptied; launch after launch."""
    made: list[Action] = []
    for first in range(0, launches * units, units):
        for turn in range(units + 1):
            if turn < units:
                made += [("send", first + turn, other) for other in range(blocks)]
            if turn > 0:
                made += [("read", first + turn - 1, other) for other in range(blocks)]
                made.append(("empty", first + turn - 1, 0))
        made.append(("end", first, 0))
    return made


def _put(row: Words, place: int, word: int) -> Words:
    return (*row[:place], word, *row[place + 1 :])


def crews(
    blocks: int, units: int, launches: int, ahead: int, tidy: bool = True, waits: bool = True
) -> int:
    """Explore a crew. `tidy`: what was read is empty before the block goes on; `waits`: a launch
    begins when the one before has ended in every block."""
    program = _program(blocks, units, launches)
    ends = [index for index, (what, _, _) in enumerate(program) if what == "end"]

    def steps(state: Crew) -> Iterable[Crew]:
        for me, (at, late, own) in enumerate(zip(*state, strict=True)):
            for place in late:
                yield state.moved(me, at, late - {place}, me, _put(own, place, 0))
            if at == len(program) or (tidy and late):
                continue
            what, number, other = program[at]
            slot = number % units % ahead * blocks
            begun = number // units
            if what == "send":
                if waits and begun and min(state.at) <= ends[begun - 1]:
                    continue
                row = state.places[other]
                if row[slot + me]:
                    raise MixedUpError("a word lands on one that was not taken")
                yield state.moved(me, at + 1, late, other, _put(row, slot + me, number + 1))
            elif what == "read" and (word := own[slot + other]):
                if word != number + 1:
                    raise MixedUpError("a word of another unit is taken")
                yield state.moved(me, at + 1, late, me, own)
            elif what == "empty":
                emptied = late | {slot + source for source in range(blocks)}
                yield state.moved(me, at + 1, emptied, me, own)
            elif what == "end" and not late:
                yield state.moved(me, at + 1, late, me, own)

    row = (0,) * (min(ahead, units) * blocks)
    start = Crew((0,) * blocks, (frozenset(),) * blocks, (row,) * blocks)
    return explore(start, steps, lambda state: min(state.at) == len(program))


def rings(warps: int, stages: int, fills: int, behind: bool) -> int:
    """Explore a ring of stages that every warp reads in two steps and leaves; `behind`: the second
    step comes after the leaving. A state: fills so far, and actions of each warp so far."""
    order = ("read", "leave", "again") if behind else ("read", "again", "leave")

    def steps(state: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
        fed, *ats = state
        free = fed - stages
        left = 3 * free + order.index("leave") + 1
        if fed < fills and (free < 0 or min(ats) >= left):
            yield (fed + 1, *ats)
        for me, at in enumerate(ats):
            number, what = at // 3, order[at % 3]
            if number == fills or (what == "read" and number >= fed):
                continue
            if what != "leave" and number + stages < fed:
                raise MixedUpError("a stage is filled while it is read")
            yield (fed, *ats[:me], at + 1, *ats[me + 1 :])

    return explore((0,) * (warps + 1), steps, lambda state: min(state[1:]) == 3 * fills)


@pytest.mark.parametrize(("blocks", "units"), [(2, 1), (2, 7), (3, 5)])
def test_hidden_numbers_arrive_in_every_order(blocks: int, units: int) -> None:
    assert crews(blocks, units, 2 if blocks == 2 else 1, AHEAD) > 50


def test_a_place_fewer_is_too_few() -> None:
    with pytest.raises(MixedUpError, match="not taken"):
        crews(2, 7, 1, AHEAD - 1)


def test_places_emptied_late_are_met_full() -> None:
    with pytest.raises(MixedUpError):
        crews(2, 7, 1, AHEAD, tidy=False)


@pytest.mark.parametrize("units", [1, 3])
def test_a_launch_that_does_not_wait_for_the_last_mixes_them_up(units: int) -> None:
    with pytest.raises(MixedUpError):
        crews(2, units, 2, AHEAD, waits=False)


@pytest.mark.parametrize("warps", [1, 3])
def test_a_stage_is_whole_as_long_as_it_is_read(warps: int) -> None:
    assert rings(warps, 2, 5, behind=False) > 20


def test_what_is_read_behind_the_leaving_may_be_the_next_filling() -> None:
    with pytest.raises(MixedUpError, match="filled while"):
        rings(2, 2, 5, behind=True)
