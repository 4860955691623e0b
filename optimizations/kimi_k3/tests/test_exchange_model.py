"""Every order in which ranks can send, read and empty mailboxes, in a model of the protocol.

Protects the number of halves and what empties them when: with two halves, emptied before the next
exchange is sent, no order of steps loses or mixes a message; with one half, or with emptying that
may be late, some order does, and the model finds it. Ranks are two or three; one word per rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

EXCHANGES = 4
Boxes = tuple[tuple[tuple[int, ...], ...], ...]
"""[owner][half][source]: number of the exchange whose word lies there, 0 for an empty place."""


class Rank(NamedTuple):
    """Where one rank is."""

    sent: int = 0
    """Words of its current exchange that have arrived, to ranks 0, 1, ..."""
    seen: int = 0
    """Words it has read, of ranks 0, 1, ..."""
    done: int = 0
    """Exchanges behind it."""
    late: tuple[tuple[int, int], ...] = ()
    """Places (half, source) it has read and not yet emptied."""


class State(NamedTuple):
    """All ranks and all mailboxes."""

    ranks: tuple[Rank, ...]
    boxes: Boxes


class MixedUpError(Exception):
    """A word was overwritten, lost or taken for another exchange's."""


def _put(boxes: Boxes, owner: int, half: int, source: int, word: int) -> Boxes:
    made = [[list(row) for row in box] for box in boxes]
    made[owner][half][source] = word
    return tuple(tuple(tuple(row) for row in box) for box in made)


def steps(state: State, halves: int, tidy: bool) -> Iterator[State]:
    """What may happen next. `tidy`: places are empty before the next exchange is begun."""
    count = len(state.ranks)
    for index, rank in enumerate(state.ranks):

        def moved(rank: Rank, boxes: Boxes, index: int = index) -> State:
            ranks = (*state.ranks[:index], rank, *state.ranks[index + 1 :])
            return State(ranks, boxes)

        half = rank.done % halves
        if rank.late:
            place, source = rank.late[0]
            emptied = _put(state.boxes, index, place, source, 0)
            yield moved(rank._replace(late=rank.late[1:]), emptied)
        if rank.done == EXCHANGES:
            continue
        if rank.sent < count and not (tidy and rank.late and rank.sent == 0):
            if state.boxes[rank.sent][half][index]:
                raise MixedUpError("a word lands on one that was not taken")
            sent = _put(state.boxes, rank.sent, half, index, rank.done + 1)
            yield moved(rank._replace(sent=rank.sent + 1), sent)
        elif rank.sent == count and (word := state.boxes[index][half][rank.seen]):
            if word != rank.done + 1:
                raise MixedUpError("a word of another exchange is taken")
            late = (*rank.late, (half, rank.seen))
            seen = rank._replace(seen=rank.seen + 1, late=late)
            if seen.seen == count:
                seen = seen._replace(sent=0, seen=0, done=rank.done + 1)
            yield moved(seen, state.boxes)


def explore(count: int, halves: int, tidy: bool) -> int:
    """Visit every state; number of states. Raises MixedUpError, or where ranks wait for ever."""
    empty = (((0,) * count,) * halves,) * count
    pending = [State((Rank(),) * count, empty)]
    known = set(pending)
    while pending:
        state = pending.pop()
        following = list(steps(state, halves, tidy))
        if not following and any(rank.done < EXCHANGES for rank in state.ranks):
            raise MixedUpError("ranks wait for ever")
        for one in set(following) - known:
            known.add(one)
            pending.append(one)
    return len(known)


@pytest.mark.parametrize("count", [2, 3])
def test_two_halves_are_enough_in_every_order(count: int) -> None:
    assert explore(count, 2, tidy=True) > 100


def test_one_half_is_not() -> None:
    with pytest.raises(MixedUpError):
        explore(2, 1, tidy=True)


def test_nor_are_two_that_may_be_emptied_late() -> None:
    with pytest.raises(MixedUpError):
        explore(2, 2, tidy=False)
