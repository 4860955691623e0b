"""Protects the way from verdicts to one outcome: nothing passes for want of an objection."""

from __future__ import annotations

from itertools import product

import pytest
import zoo_records as zoo

from fasttrack import rules
from fasttrack.rules.base import Case
from fasttrack.schema import State, Verdict
from fasttrack.schema.verdict import BAD, GOOD


def verdict(state: State, deciding: bool = True) -> Verdict:
    """A verdict of some rule."""
    return Verdict(rule="x", cell="x", state=state, reason="OK", detail="", deciding=deciding)


def outcome(*states: State, deciding: bool = True) -> State:
    """The outcome of verdicts in these states."""
    return rules.outcome(zoo.case([]), [verdict(state, deciding) for state in states]).state


@pytest.mark.parametrize(("one", "other"), list(product(State, State)))
def test_outcome_of_two(one: State, other: State) -> None:
    fails = {*BAD, State.NOT_EXERCISED}
    if {one, other} & fails:
        expected = State.FAIL
    elif {one, other} <= GOOD:
        expected = State.PASS
    else:
        expected = State.INCONCLUSIVE
    assert outcome(one, other) is expected


def test_nothing_decides_nothing() -> None:
    assert outcome() is State.INCONCLUSIVE
    assert outcome(State.PASS, State.FASTER, deciding=False) is State.INCONCLUSIVE
    assert outcome(State.FAIL, deciding=False) is State.INCONCLUSIVE


def test_good_and_bad_do_not_overlap() -> None:
    assert not GOOD & BAD
    assert State.MISSING not in GOOD | BAD


def test_verdicts_come_in_the_order_of_stages_and_twice_the_same() -> None:
    first, again = zoo.decide(zoo.honest_run()), zoo.decide(zoo.honest_run())
    assert first == again
    names = [v.rule for v in first[0]]
    assert names.index("isolation") < names.index("numerics") < names.index("quality")
    assert names[-1] == "speed"


def test_records_in_another_order_give_the_same_verdicts() -> None:
    records = zoo.honest_run()
    by_cell = {v.cell: v for v in zoo.decide(records)[0]}
    turned = {v.cell: v for v in zoo.decide(list(reversed(records)))[0]}
    assert by_cell.keys() == turned.keys()
    for cell, one in by_cell.items():
        assert one.state is turned[cell].state, cell


def test_the_outcome_names_what_was_not_tested() -> None:
    _, result = zoo.decide(zoo.honest_run())
    assert "batch above 8" in result.untested
    assert "contexts above 64 tokens" in result.untested
    assert not [text for text in result.untested if text.startswith("features")]
    two = zoo.claim().targets["lab"]
    claim = zoo.claim().model_copy(update={"targets": {"lab": two, "big": two}})
    assert "other targets of the claim: big" in zoo.decide(zoo.honest_run(), claim)[1].untested


def test_features_that_were_not_shown_are_named_as_untested() -> None:
    refused = zoo.claim(features={"refused": {"lora": "packed weights"}})
    seen = [zoo.feature("lora", arm, "refused", message="no") for arm in ("base", "candidate")]
    records = zoo.honest_run(features=[*zoo.features(), *seen])
    assert "features: lora" in zoo.decide(records, refused)[1].untested
    without = zoo.honest_run(features=[])
    told = next(t for t in zoo.decide(without)[1].untested if t.startswith("features"))
    assert "abort" in told and "token_bias" in told


def test_reproduce_is_a_whole_command() -> None:
    case: Case = zoo.case([])
    assert case.reproduce("perf", "decode/batch=1/context_tokens=64") == (
        "fasttrack validate FOLDER --target lab --tier standard --seed 0 --fresh --only perf "
        "--cell 'decode/batch=1/context_tokens=64'"
    )
