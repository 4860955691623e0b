"""Protects MoE claims from prompts that use experts as random tokens do, and only from those."""

from __future__ import annotations

import math

import pytest
import zoo_records as zoo

from fasttrack.rules import routing
from fasttrack.schema import Record, State, Verdict

CELL = "decode/batch=8/context_tokens=64"


def told(record: Record) -> tuple[Verdict, Verdict, State]:
    """The verdict on routing, that of a cell, and the outcome."""
    verdicts, outcome = zoo.decide([*zoo.honest_run(), record])
    seen = zoo.found(verdicts, "routing/context_tokens=64")
    return seen, zoo.found(verdicts, CELL), outcome.state


def test_text_that_prefers_some_experts_counts() -> None:
    seen, cell, outcome = told(zoo.routing())
    assert (seen.state, cell.state, outcome) == (State.PASS, State.FASTER, State.PASS)
    assert seen.deciding is False
    assert "entropy 0.8" in seen.detail and "for random tokens" in seen.detail


def test_text_that_is_more_even_than_random_tokens_counts_too() -> None:
    swapped = zoo.routing(sent=zoo.evenly(3), random=zoo.skewed(1), again=zoo.skewed(2))
    assert told(swapped)[1].state is State.FASTER


def test_prompts_that_route_like_random_tokens_do_not() -> None:
    seen, cell, outcome = told(zoo.routing(sent=zoo.evenly(3)))
    assert (seen.state, cell.state) == (State.INVALID, State.INVALID)
    assert cell.reason == "VAL-PROMPTS" and "route like random tokens" in cell.detail
    assert outcome is State.INCONCLUSIVE


def test_a_model_without_experts_has_nothing_to_tell() -> None:
    seen, cell, _ = told(zoo.routing(experts=0, sent=(), random=(), again=()))
    assert (seen.state, cell.state) == (State.PASS, State.FASTER)


def test_other_contexts_are_not_concerned() -> None:
    verdicts, _ = zoo.decide(
        [*zoo.honest_run(), zoo.routing(sent=zoo.evenly(3), context_tokens=128)]
    )
    assert zoo.found(verdicts, CELL).state is State.FASTER


def test_layers_that_were_counted_unlike_do_not_count() -> None:
    assert told(zoo.routing(again=zoo.evenly(2)[:1]))[1].reason == "VAL-PROMPTS"


def test_routing_that_was_not_seen_is_said_and_leaves_the_evenness() -> None:
    blind = zoo.routing(sent=(), random=(), again=(), problem="it is one graph")
    seen, cell, _ = told(blind)
    assert (seen.state, seen.reason, cell.state) == (
        State.INSENSITIVE, "VAL-UNROUTED", State.FASTER,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [([4, 4, 4, 4], 1.0), ([9, 0, 0, 0], 0.0), ([5, 5, 0, 0], 0.5), ([0, 0], 0)],
)
def test_entropy_is_a_share_of_its_largest(counts: list[int], wanted: float) -> None:
    assert math.isclose(routing.entropy([counts]), wanted, abs_tol=1e-12)


def test_distance_is_the_share_that_would_have_to_move() -> None:
    record = zoo.routing(sent=[[8, 0]], random=[[2, 2]], again=[[3, 1]])
    assert routing.distances(record) == (0.5, 0.25)
