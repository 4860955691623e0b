"""Protects the pairing of answers: the same question in both arms, once each, or no comparison."""

from __future__ import annotations

from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.evals.pairing import Unpaired, first_difference, pair


def test_pairs_come_in_item_order_with_their_control() -> None:
    records = [
        *reversed(zoo.answers(3)),
    ]
    pairs = pair(records)
    assert [p.base.item for p in pairs] == ["recall-0", "recall-1", "recall-2"]
    for p in pairs:
        assert p.candidate.item == p.base.item
        assert p.control is not None and p.control.repeat == "control"
        assert p.alone is not None and [r.arm for r in p.alone] == ["base", "candidate"]


def test_the_control_may_be_absent() -> None:
    pairs = pair([r for r in zoo.answers(2) if r.repeat == "main"])
    assert [p.control for p in pairs] == [None, None]


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([], "one arm only: all"),
        ([zoo.item(0, "base")], "one arm only: recall-0"),
        ([zoo.item(0, "candidate")], "one arm only: recall-0"),
        ([zoo.item(0, "base", "control")], "one arm only: recall-0"),
        ([*zoo.answers(2), zoo.item(2, "base", "control")], "one arm only: recall-2"),
        ([*zoo.answers(2), zoo.item(0, "base")], "recall-0 was answered twice in base"),
        ([*zoo.answers(2), zoo.item(0, "base", "control")], "twice in control"),
        ([zoo.item(0, "base"), zoo.item(0, "candidate", error="lost")], "candidate failed: lost"),
        ([zoo.item(0, "base"), zoo.item(0, "candidate", prompt_sha256="0" * 64)],
         "recall-0 was asked with different prompts"),
    ],
)  # fmt: skip
def test_whatever_is_not_the_same_question_twice_is_refused(records: Any, says: str) -> None:
    with pytest.raises(Unpaired, match=says):
        pair(records)


def test_a_long_error_is_cut() -> None:
    with pytest.raises(Unpaired) as caught:
        pair([zoo.item(0, "base", error="x" * 10_000)])
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize(
    ("one", "other", "index"),
    [((), (), 0), ((1,), (1,), 1), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((1, 2), (), 0)],
)
def test_first_difference(one: Any, other: Any, index: int) -> None:
    assert first_difference(one, other) == first_difference(other, one) == index
