"""Protects the prompts: real text by digest, the same in both arms, and never random tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from local_engine import setting

from fasttrack.errors import UsageError
from fasttrack.perf import prompts, sweep
from fasttrack.schema import Policy, SampleRecord
from fasttrack.schema.claim import PromptSet

LIMIT = Policy().speed.max_token_evenness


def test_the_shipped_set_is_text_of_several_kinds_and_languages(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in prompts.SHIPPED.read_text().splitlines()]
    assert {"docs", "code", "mail", "chat"} <= {line["kind"] for line in lines}
    assert len({line["language"] for line in lines}) >= 5
    passages = prompts.load(None, tmp_path)
    assert passages.texts == tuple(line["text"] for line in lines)
    assert len(passages.sha256) == 64


def test_a_corpus_is_seeded_and_long_enough(tmp_path: Path) -> None:
    texts = prompts.load(None, tmp_path).texts
    one = prompts.corpus(texts, 0, 5000)
    assert one == prompts.corpus(texts, 0, 5000) != prompts.corpus(texts, 1, 5000)
    assert len(one) >= 5000


def test_a_set_of_the_user_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "One."}\n\n{"prompt": "Two.", "output_tokens": 5}\n')
    found = prompts.load(PromptSet(file="mine.jsonl"), tmp_path)
    assert found.texts == ("One.", "Two.")
    again = prompts.load(PromptSet(file="mine.jsonl", sha256=found.sha256), tmp_path)
    assert again == found


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("", "no text"),
        ("[1]\n", "no text in"),
        ('{"text": "  "}\n', "no text in"),
        ('{"text": "x"}\nnot json\n', "Expecting value"),
        (b"\xff\xfe", "codec"),
    ],
)
def test_a_bad_set_is_refused(tmp_path: Path, content: str | bytes | None, says: str) -> None:
    path = tmp_path / "mine.jsonl"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        prompts.load(PromptSet(file="mine.jsonl"), tmp_path)
    assert caught.value.code == "PRF-001"
    assert says in caught.value.cause


def test_another_digest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"text": "One."}\n')
    with pytest.raises(UsageError) as caught:
        prompts.load(PromptSet(file="mine.jsonl", sha256="0" * 64), tmp_path)
    assert caught.value.code == "PRF-002"


def test_random_tokens_are_even_and_text_is_not(tmp_path: Path) -> None:
    text = prompts.corpus(prompts.load(None, tmp_path).texts, 0, 4000)
    letters, words = [ord(c) for c in text], [hash(w) for w in text.split()]
    assert prompts.evenness(letters) < 0.85
    assert prompts.evenness(words) < LIMIT
    rng = random.Random(0)
    for kinds, count in ((95, 2000), (256, 2000), (160_000, 2000)):
        assert prompts.evenness(rng.choices(range(kinds), k=count)) > LIMIT
    assert prompts.evenness([7, 7, 7]) == 0.0


def test_samples_tell_their_prompts(tmp_path: Path) -> None:
    told = []
    for arm in ("base", "candidate"):
        made = sweep.run(
            setting(tmp_path),
            {
                "arm": arm,
                "block": 0,
                "position": 0,
                "window_steps": 10,
                "pairs": 4,
                "shape": [1, 1, 0],
            },
        )
        told.append({
            r.cell: (r.prompts_sha256, r.prompt_set_sha256, r.token_evenness)
            for r in made if isinstance(r, SampleRecord)
        })  # fmt: skip
    assert told[0] == told[1]
    assert len({sha for sha, _, _ in told[0].values()}) == 2
    assert {sha for _, sha, _ in told[0].values()} == {prompts.load(None, tmp_path).sha256}
