"""Orders in which ranks can send, read and empty mailboxes, in a model of the protocol.

Protects the number of halves and what empties them when: with two halves, emptied before the next
exchange is sent, no order of steps loses or mixes a message; with one half, or with emptying that
may be late, some order does, and the model finds it. Every order of two and three ranks; for 8 and
16 random ones in which some ranks are slow, enough of them to find both faults. One word per rank.
"""

from __future__ import annotations

import random
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
    for index in range(len(state.ranks)):
        yield from _steps_of(state, index, halves, tidy)


def _steps_of(state: State, index: int, halves: int, tidy: bool) -> Iterator[State]:
    """What one rank may do next."""
    rank, count = state.ranks[index], len(state.ranks)

    def moved(rank: Rank, boxes: Boxes) -> State:
        return State((*state.ranks[:index], rank, *state.ranks[index + 1 :]), boxes)

    half = rank.done % halves
    if rank.late:
        place, source = rank.late[0]
        emptied = _put(state.boxes, index, place, source, 0)
        yield moved(rank._replace(late=rank.late[1:]), emptied)
    if rank.done == EXCHANGES:
        return
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


def _empty(count: int, halves: int) -> State:
    return State((Rank(),) * count, (((0,) * count,) * halves,) * count)


def explore(count: int, halves: int, tidy: bool) -> int:
    """Visit every state; number of states. Raises MixedUpError, or where ranks wait for ever."""
    pending = [_empty(count, halves)]
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


def walk(count: int, halves: int, tidy: bool, seed: int) -> int:
    """One random order; number of its steps. Some ranks are drawn to be much slower than others,
    and some to put emptying off. Raises as `explore` does."""
    rng = random.Random(seed)
    paces = [rng.choice((0.02, 0.3, 1.0)) for _ in range(count)]
    tidiness = [rng.choice((0.05, 1.0)) for _ in range(count)]
    state, taken = _empty(count, halves), 0
    while True:
        # Exponential waiting times whose rates are the paces: who is ready first goes first.
        for index in sorted(range(count), key=lambda index: rng.expovariate(paces[index])):
            moves = list(_steps_of(state, index, halves, tidy))
            if moves:
                # Emptying is the first of two.
                state = moves[0 if rng.random() < tidiness[index] else -1]
                taken += 1
                break
        else:
            break
    if any(rank.done < EXCHANGES for rank in state.ranks):
        raise MixedUpError("ranks wait for ever")
    return taken


@pytest.mark.parametrize("count", [2, 3])
def test_two_halves_are_enough_in_every_order(count: int) -> None:
    assert explore(count, 2, tidy=True) > 100


def test_one_half_is_not() -> None:
    with pytest.raises(MixedUpError):
        explore(2, 1, tidy=True)


def test_nor_are_two_that_may_be_emptied_late() -> None:
    with pytest.raises(MixedUpError):
        explore(2, 2, tidy=False)


@pytest.mark.parametrize(("count", "walks"), [(8, 40), (16, 10)])
def test_two_halves_are_enough_for_many_ranks_of_different_pace(count: int, walks: int) -> None:
    # Every rank sends, reads and empties a word of every rank in every exchange.
    assert {walk(count, 2, True, seed) for seed in range(walks)} == {3 * count**2 * EXCHANGES}


@pytest.mark.parametrize(("halves", "tidy"), [(1, True), (2, False)])
@pytest.mark.parametrize("count", [8, 16])
def test_random_orders_find_both_faults(count: int, halves: int, tidy: bool) -> None:
    def found(seed: int) -> bool:
        try:
            walk(count, halves, tidy, seed)
        except MixedUpError:
            return True
        return False

    assert any(found(seed) for seed in range(20))
