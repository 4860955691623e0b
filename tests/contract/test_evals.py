"""Protects paired evals: what each task of the registry must do so that arms can be compared and a
verifier can score again. A new task is tested by being registered."""

from __future__ import annotations

import random

import pytest

from fasttrack.evals.task import MIN_PROMPT_TOKENS, EvalTask
from fasttrack.evals.tasks import registry

TASKS = registry()
SIZES = [(1, MIN_PROMPT_TOKENS), (12, 1024), (64, 4096)]


@pytest.fixture(params=TASKS, ids=lambda task: task.name)
def task(request: pytest.FixtureRequest) -> EvalTask:
    """Each task in turn."""
    found: EvalTask = request.param
    return found


def test_names_are_unique_and_there_are_some() -> None:
    assert TASKS
    assert len({task.name for task in TASKS}) == len(TASKS)


@pytest.mark.parametrize(("count", "room"), SIZES)
def test_the_same_seed_gives_the_same_items(task: EvalTask, count: int, room: int) -> None:
    assert list(task.items(3, count, room)) == list(task.items(3, count, room))
    assert list(task.items(3, count, room)) != list(task.items(4, count, room))


@pytest.mark.parametrize(("count", "room"), SIZES)
def test_as_many_distinct_items_as_asked_for(task: EvalTask, count: int, room: int) -> None:
    items = task.items(0, count, room)
    assert len(items) == count
    assert len({item.id for item in items}) == count
    assert len({item.prompt for item in items}) == count


@pytest.mark.parametrize(("count", "room"), SIZES)
def test_prompts_fit_even_one_token_per_character(task: EvalTask, count: int, room: int) -> None:
    for item in task.items(0, count, room):
        assert 0 < len(item.prompt) <= room
        assert item.prompt.isascii()


def test_the_answer_scores_one_and_others_less(task: EvalTask) -> None:
    rng = random.Random(0)
    for item in task.items(0, 20, 1024):
        assert task.score(item, item.answer) == 1.0
        assert task.score(item, "") == 0.0
        assert task.score(item, item.answer[:-1]) < 1.0
        assert task.score(item, "".join(rng.choices("xyz ", k=40))) == 0.0


def test_scores_lie_between_zero_and_one_and_never_fail(task: EvalTask) -> None:
    (item,) = task.items(0, 1, 400)
    for text in ("\x00", "é😀", item.prompt, "9" * 10_000, "\n" * 100, item.answer * 3):
        assert 0.0 <= task.score(item, text) <= 1.0
        assert task.score(item, text) == task.score(item, text)
