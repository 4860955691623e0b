"""Protects the promise of the zoo: every cheat is refused for its own reason, honest work passes.

One test per plant, judged as `fasttrack self-test` judges it. The last tests protect the self-test
itself: it must notice a cheat that passes, one refused for another reason, and honest work refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fasttrack.errors import EXPLANATIONS, UsageError
from fasttrack.schema.verdict import REASONS
from fasttrack.selftest import catalogue, run
from fasttrack.selftest.catalogue import Plant
from fasttrack.selftest.plants import Zoo
from fasttrack.verify.codes import CODES

HERE = Path(__file__).parent
PLANTS = catalogue.load(HERE)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zoo]:
    """One zoo for all plants: case plants share their children."""
    with Zoo(HERE, tmp_path_factory.mktemp("zoo")) as made:
        yield made


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.id)
def test_a_plant_is_judged_as_it_should_be(zoo: Zoo, plant: Plant) -> None:
    if lacking := catalogue.unmet(plant):
        pytest.skip(lacking)
    assert zoo.problem(plant) == ""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.id)
def test_a_plant_names_codes_that_exist(plant: Plant) -> None:
    named = [code for code in (plant.expect.code, *plant.expect.also) if code]
    assert not set(named) - {*REASONS, *EXPLANATIONS, *CODES}


def planted(folder: Path, group: str, toml: str) -> Path:
    """A zoo with one plant."""
    (folder / group / "plant").mkdir(parents=True)
    (folder / group / "plant" / "zoo.toml").write_text('title = "t"\nhow = "h"\n' + toml)
    return folder


@pytest.mark.parametrize(
    ("group", "toml", "says"),
    [
        ("cheats", 'stage = "evals"\nexpect = { code = "EVAL-DIVERGED" }', "accepted: "),
        ("cheats", 'stage = "evals"\nfake.fault = "no_path"\nexpect = { code = "EVAL-DIVERGED" }',
         "no verdict EVAL-DIVERGED of *; PATH-NONE [evals/candidate]"),
        ("cheats", 'stage = "evals"\nfake.fault = "wrong_token"\nexpect = '
         '{ code = "EVAL-DIVERGED", says = "stale" }', "no verdict EVAL-DIVERGED of * that says"),
        ("cheats", 'stage = "features"\nfake.fault = "lost_stop"\nexpect = '
         '{ code = "FEAT-LOST", cell = "sampling" }', "no verdict FEAT-LOST of sampling"),
        ("honest", 'stage = "evals"\nfake.fault = "no_path"', "refused: PATH-NONE"),
        ("honest", 'stage = "evals"\nexpect = { code = "SPD-EQUIVALENT" }', "no verdict SPD-"),
    ],
)  # fmt: skip
def test_a_wrong_judgement_is_noticed(tmp_path: Path, group: str, toml: str, says: str) -> None:
    found = run.run(planted(tmp_path, group, 'kind = "stage"\n' + toml))
    assert [plant.state for plant in found.plants] == ["wrong"]
    assert says in found.plants[0].detail
    assert not found.flawless
    assert found.kill_rate == 0.0


def test_a_refusal_for_another_reason_too_is_noticed(tmp_path: Path) -> None:
    toml = 'kind = "stage"\nstage = "perf"\nfake.fault = "slow"\nexpect = { code = "SPD-SLOWER" }'
    found = run.run(planted(tmp_path, "cheats", toml))
    assert "refused for another reason too: SPD-SENTENCE" in found.plants[0].detail


@pytest.mark.parametrize(
    ("toml", "code", "says"),
    [
        ('kind = "stage"', "ZOO-002", "a cheat names the code"),
        ('kind = "stag"\nexpect = { code = "X" }', "ZOO-002", "kind"),
        ("kind = ", "ZOO-002", "plant/zoo.toml"),
    ],
)
def test_a_malformed_plant_is_an_error(tmp_path: Path, toml: str, code: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        run.run(planted(tmp_path, "cheats", toml))
    assert caught.value.code == code
    assert says in caught.value.cause


def test_no_zoo_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run.run(tmp_path)
    assert caught.value.code == "ZOO-001"
