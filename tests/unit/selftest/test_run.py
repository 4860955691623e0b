"""Protects the self-test around its plants: selection, counts, the kept result and the command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import zoo_records as zoo

from fasttrack.cli.main import main
from fasttrack.errors import UsageError
from fasttrack.schema import MutantResult
from fasttrack.selftest import catalogue, mutants, run

CHEAT = """
title = "Tokens differ"
how = "Planted."
row = 42
kind = "stage"
stage = "evals"
fake = { fault = "wrong_token" }
expect = { code = "EVAL-DIVERGED" }
"""
HONEST = 'title = "Plain"\nhow = "Nothing."\nkind = "stage"\nstage = "evals"\n'


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A zoo of two plants that need no tensors."""
    for name, text in (("cheats/differs", CHEAT), ("honest/plain", HONEST)):
        folder = tmp_path / "zoo" / name
        folder.mkdir(parents=True)
        (folder / "zoo.toml").write_text(text)
    return tmp_path / "zoo"


def test_counts_and_the_sentence(small: Path) -> None:
    found = run.run(small)
    assert found.count("cheats") == found.count("honest") == (1, 1)
    assert found.sentence == "1/1 cheats caught, 1/1 honest accepted"
    assert found.flawless and found.kill_rate == 1.0
    assert [(p.name, p.row, p.code) for p in found.plants] == [
        ("differs", 42, "EVAL-DIVERGED"),
        ("plain", None, ""),
    ]
    assert found.catalogue_sha256 == catalogue.digest(small)


def test_plants_this_machine_cannot_run_count_nowhere() -> None:
    tested = zoo.self_test(cheats="not run")
    assert tested.count("cheats") == (0, 0)
    assert tested.sentence.endswith("1/1 honest accepted, 1 not run here")
    assert tested.kill_rate == 0.0


def test_the_digest_is_that_of_a_wheel_too(small: Path) -> None:
    before = catalogue.digest(small)
    (small / "test_something.py").write_text("")
    (small / "__pycache__").mkdir()
    (small / "__pycache__" / "x.pyc").write_text("")
    assert catalogue.digest(small) == before
    (small / "cheats" / "differs" / "more.py").write_text("")
    assert catalogue.digest(small) != before


def test_the_result_is_kept_and_a_changed_zoo_is_tested_again(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def counted() -> object:
        runs.append(1)
        return zoo.self_test()

    monkeypatch.setattr(catalogue, "default_folder", lambda: small)
    monkeypatch.setattr(run, "run", counted)
    cache = tmp_path / "cache"
    assert run.kept(cache) == run.kept(cache) == zoo.self_test()
    assert len(runs) == 1
    (kept,) = cache.iterdir()
    kept.write_text("{")
    run.kept(cache)
    (small / "cheats" / "differs" / "more.py").write_text("")
    run.kept(cache)
    assert len(runs) == 3


def test_a_result_with_a_flaw_is_not_kept(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "default_folder", lambda: small)
    monkeypatch.setattr(run, "run", lambda: zoo.self_test(cheats="wrong"))
    assert run.kept(tmp_path / "cache").wrong == ("a_cheats",)
    assert not (tmp_path / "cache").exists()


def test_the_command(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["self-test", "--zoo", str(small), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["kill_rate"] == 1.0
    assert "[1/2] cheats/differs: EVAL-DIVERGED" in told.err
    assert main(["self-test", "--zoo", str(small), "--only", "honest/*"]) == 0
    assert capsys.readouterr().out == "self-test: 0/0 cheats caught, 1/1 honest accepted\n"
    (small / "honest/plain/zoo.toml").write_text(HONEST + 'fake = { fault = "hang" }\ntimeout_s=1')
    assert main(["self-test", "--zoo", str(small), "--only", "plain"]) == 1
    told = capsys.readouterr()
    assert "0/1 honest accepted" in told.out and "ENG-004" in told.err


def test_the_list(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["self-test", "--zoo", str(small), "--list", "--json"]) == 0
    assert [p["name"] for p in json.loads(capsys.readouterr().out)] == ["differs", "plain"]
    assert main(["self-test", "--zoo", str(small), "--list"]) == 0
    assert "cheats/differs" in capsys.readouterr().err


def test_a_file_that_was_accepted_spoils_the_result() -> None:
    good = zoo.self_test()
    refused = good.model_copy(update={"mutants": MutantResult(made=9, refused=9, seed=1)})
    accepted = good.model_copy(update={"mutants": MutantResult(made=9, refused=8, seed=1)})
    assert refused.flawless and "9/9 spoilt files refused" in refused.sentence
    assert not accepted.flawless


def test_spoilt_files_are_refused_and_an_accepted_one_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = mutants.find(catalogue.find(None))
    assert folder is not None
    found = mutants.run(folder, count=10)
    assert (found.made, found.refused, found.detail) == (10, 10, "")
    monkeypatch.setattr(sys.modules["fuzz"], "verify", lambda *_, **__: None)
    found = mutants.run(folder, count=10)
    assert found.refused == 0 and found.detail.startswith("accepted: ")


def test_no_such_plant(small: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run.run(small, only="nothing*")
    assert caught.value.code == "USE-001"


def test_this_installation_has_a_zoo_with_both_groups() -> None:
    groups = {plant.group for plant in catalogue.load(catalogue.find(None))}
    assert groups == {"cheats", "honest"}
