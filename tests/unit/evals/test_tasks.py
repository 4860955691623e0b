"""Protects what the embedded tasks ask and how they score: needles told apart by their ordinal,
chains whose every step follows from the prompt, and scorers that forgive exactly what they say."""

from __future__ import annotations

import re

import pytest

from fasttrack.evals.task import MIN_PROMPT_TOKENS, Item
from fasttrack.evals.tasks import cloze, long_chain, mrcr_synthetic
from fasttrack.evals.tasks.dialogue import tokens

ROUND = re.compile(r"<\|user\|>([^<]*)<\|end\|><\|assistant\|>([^<]*)<\|end\|>")
ASKED = re.compile(r"prepend (\w{6}) to (\w+) (\d+) about (\w+)")


@pytest.mark.parametrize("needles", [2, 4, 8])
def test_the_wanted_answer_is_the_one_of_its_ordinal(needles: int) -> None:
    for item in mrcr_synthetic.items(0, 6, needles, 800, 2000):
        asked = ASKED.search(item.prompt)
        assert asked is not None
        prefix, kind, ordinal, topic = asked.groups()
        same = [said for request, said in ROUND.findall(item.prompt)
                if request == f"{kind} about {topic}"]  # fmt: skip
        assert len(same) == len(set(same)) == needles
        assert item.answer == f"{prefix} {same[int(ordinal) - 1]}"


@pytest.mark.parametrize(("unit", "size"), [("TOKENS", tokens), ("CHARACTERS", len)])
def test_prompts_grow_to_what_they_may_have_and_not_beyond(unit: str, size) -> None:
    counted = getattr(mrcr_synthetic, unit)
    sizes = [size(i.prompt) for i in mrcr_synthetic.items(1, 12, 2, 400, 2000, unit=counted)]
    assert max(sizes) <= 2000 and sizes[-1] > 1600 and sizes[0] <= 400
    (least,) = mrcr_synthetic.items(1, 1, 2, MIN_PROMPT_TOKENS, MIN_PROMPT_TOKENS, unit=counted)
    assert size(least.prompt) <= MIN_PROMPT_TOKENS


def test_every_step_of_a_chain_follows_from_the_prompt() -> None:
    for item in long_chain.items(3, 5, 12):
        start, *lines = item.prompt.removeprefix("<|user|>").split("<|end|>")[0].split("\n")
        _, node, arrangement = start.split()
        following = {line[:2]: line for line in lines}
        told = []
        while node != long_chain.LAST:
            line = following[node]
            a, b, node = line[3], line[4], line[6:]
            arrangement = arrangement.translate(str.maketrans(a + b, b + a))
            told.append(f"{line}={arrangement}")
        assert item.answer == "\n".join(told) and len(told) == 12


def test_mrcr_gives_part_of_the_credit_and_none_without_the_prefix() -> None:
    (item,) = mrcr_synthetic.items(0, 1, 2, 400, 400)
    right = item.answer
    assert 0.9 < mrcr_synthetic.score(right, right[:-1] + "!") < 1.0
    assert mrcr_synthetic.score(right, right[1:]) == mrcr_synthetic.score(right, "!" + right) == 0.0


def test_one_wrong_step_ruins_a_chain() -> None:
    (item,) = long_chain.items(0, 1, 8)
    wrong = item.answer.replace("=", "-", 1)
    assert long_chain.score(item.answer, f" {item.answer}\n") == 1.0
    assert long_chain.score(item.answer, wrong) == 0.0
    assert long_chain.right_steps(item.answer, wrong) == 0
    cut = item.answer.rsplit("\n", 1)[0]
    assert (
        long_chain.score(item.answer, cut) == 0.0 and long_chain.right_steps(item.answer, cut) == 7
    )


def test_a_cloze_is_a_text_cut_off_and_scores_what_is_right_before_the_first_mistake() -> None:
    items = cloze.TASK.items(0, 32, MIN_PROMPT_TOKENS)
    assert items == cloze.TASK.items(0, 32, MIN_PROMPT_TOKENS) != cloze.TASK.items(1, 32, 240)
    assert {len(item.answer) for item in items} == {cloze.WANTED}
    assert len({item.prompt[-2:] for item in items}) > 16, "the cuts are at many places"
    item = Item(id="c", prompt="<|user|>start ab", answer="cd:e")
    assert not cloze.TASK.judged and long_chain.TASK.judged and mrcr_synthetic.TASK.judged
    assert [cloze.TASK.score(item, text) for text in ("cd:ef", "cd.e", "d:e", "")] == [1, 0.5, 0, 0]
