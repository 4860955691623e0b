"""Protects long evals and their data: a journal survives a crash, a bad row refuses its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fasttrack.errors import RunError, UsageError
from fasttrack.evals.external import data
from fasttrack.evals.external.journal import Journal
from fasttrack.schema import ItemRecord, SessionRecord


def answer(item: str) -> ItemRecord:
    return ItemRecord(
        eval="mrcr", item=item, prompt_sha256="0", arm="base", concurrency=1, token_ids=(5, 6),
        text="ab", logprobs=(-0.5, None), finish_reason="stop", score=0.25, seed=7,
    )  # fmt: skip


def session(name: str, end_s: float) -> SessionRecord:
    return SessionRecord(
        stage="evals", session=name, arm="base", started_utc="2026-01-01T00:00:00+00:00",
        start_s=1.0, ready_s=2.0, end_s=end_s, switch="auto", fingerprint={"engine": "fake"},
    )  # fmt: skip


def test_a_journal_gives_back_what_was_answered_but_not_a_line_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "one.jsonl"
    first = Journal(path)
    first.add([session("a", 2.0)])
    first.add([session("a", 3.0), answer("1")])
    first.add([session("a", 4.0), answer("2")])
    path.write_bytes(path.read_bytes()[:-9])

    again = Journal(path)
    assert [r.item for r in again.answers()] == ["1"]
    assert (again.resumed, again.boots) == (1, 1)
    assert again.records()[0] == session("a", 3.0)
    again.add([session("b", 9.0), answer("2")])
    whole = Journal(path)
    assert [r.item for r in whole.answers()] == ["1", "2"]
    assert (whole.resumed, whole.boots) == (2, 2)
    assert whole.answers()[0].score == 0.25


@pytest.mark.parametrize("line", [b"{}", b"[{}]", b"not json", b'[{"kind":"item"}]'])
def test_a_damaged_journal_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(RunError, match="line 1") as told:
        Journal(path)
    assert told.value.code == "RUN-003"


AIME = {"problem": "What is $1 + 1$?", "answer": 2}
SAID = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "Prepend xy."}]
MRCR = {
    "prompt": json.dumps(SAID),
    "answer": "xyowls",
    "random_string_to_prepend": "xy",
    "n_needles": 4,
}


GSM = {"id": 7, "instance": 0, "question": "What is 1 + 1?", "answer": "1 + 1 = 2\n#### 2"}


def rows(folder: Path, name: str, *given: dict[str, Any]) -> list[dict[str, Any]]:
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in given))
    return data.rows(name, path)


def test_official_rows_are_read_in_order(tmp_path: Path) -> None:
    other = {**AIME, "answer": "003"}
    assert [row["answer"] for row in rows(tmp_path, "aime25", AIME, other)] == ["2", "003"]
    (row,) = rows(tmp_path, "mrcr", MRCR)
    assert row["messages"] == SAID
    (row,) = rows(tmp_path, "gsm-symbolic", {**GSM, "answer": "so\n#### -1,200.5\n"})
    assert row["answer"] == "-1,200.5"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("aime25", {"problem": "x"}),
        ("aime25", {**AIME, "answer": "1/2"}),
        ("aime25", {**AIME, "answer": 1000}),
        ("aime25", {**AIME, "problem": " "}),
        ("mrcr", {**MRCR, "prompt": "[]"}),
        ("mrcr", {**MRCR, "prompt": "no json"}),
        ("mrcr", {**MRCR, "prompt": json.dumps(SAID[:1])}),
        ("mrcr", {**MRCR, "prompt": json.dumps([{"role": "tool", "content": ""}, SAID[1]])}),
        ("mrcr", {**MRCR, "prompt": json.dumps([{"role": "user"}])}),
        ("mrcr", {**MRCR, "answer": "owls"}),
        ("mrcr", {**MRCR, "random_string_to_prepend": ""}),
        ("mrcr", {**MRCR, "n_needles": 0}),
        ("mrcr", AIME),
        # As in openai/gsm8k, which is another set.
        ("gsm-symbolic", {key: GSM[key] for key in ("question", "answer")}),
        ("gsm-symbolic", {**GSM, "answer": "2"}),
        ("gsm-symbolic", {**GSM, "answer": "#### two"}),
        ("gsm-symbolic", {**GSM, "question": ""}),
        ("gsm-symbolic", {**GSM, "instance": None}),
    ],
)
def test_a_bad_row_refuses_the_file(tmp_path: Path, name: str, row: dict[str, Any]) -> None:
    good = {"aime25": AIME, "gsm-symbolic": GSM, "mrcr": MRCR}[name]
    with pytest.raises(UsageError, match="row 2") as told:
        rows(tmp_path, name, good, row)
    assert told.value.code == "EVL-003"


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "data.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UsageError, match="not Parquet") as told:
        data.rows("mrcr", path)
    assert told.value.code == "EVL-003"


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{", b"[1]\n", b"\xff\xfe", b'{"a":1,"a":2}'])
def test_no_file_of_rows(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError) as told:
        data.rows("aime25", path)
    assert told.value.code == "EVL-003"
