"""Protects the second opinion: chance chooses what is measured again, and only agreement is signed.

Small result files are made as a reproducer's runs would make them: one stage, one cell, the seed of
the challenge, the reproducer's key.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import bundle_maker as maker
import pytest
import typer

from fasttrack.bundle import sign
from fasttrack.bundle.card import Answer, Challenge
from fasttrack.cli import common
from fasttrack.cli.challenge import challenge
from fasttrack.cli.validate import validate
from fasttrack.errors import VerificationFailed
from fasttrack.schema import Record, Tier
from fasttrack.verify import challenge as room
from fasttrack.verify.steps import verify

NONCE = "b7e1a4"
SCOPE = {"scope_sha256": "e" * 64}
Edit = Callable[[Record], Record | None]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Author and reproducer."""
    folder = tmp_path_factory.mktemp("keys")
    return {name: maker.write_key(folder / name) for name in ("author", "bob")}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, Path]) -> Path:
    """The author's file."""
    return maker.honest(tmp_path_factory.mktemp("original"), keys["author"], source=SCOPE)


@pytest.fixture
def file(original: Path, tmp_path: Path) -> Path:
    """A copy of the author's file, to be signed."""
    return Path(shutil.copy(original, tmp_path))


def picks(file: Path, nonce: str = NONCE) -> tuple[room.Pick, ...]:
    found = verify(file)
    return room.picks(nonce, found.manifest_sha256, found.verdicts)


def small(
    folder: Path, key: Path, pick: room.Pick, edit: Edit = lambda r: r, **source: Any
) -> Path:
    """A reproducer's run of one picked cell."""

    def chosen(record: Record) -> Record | None:
        cell = getattr(record, "cell", pick.cell)
        return edit(record) if fnmatchcase(cell or "", pick.cell) else None

    folder.mkdir()
    run = {"tier": Tier.SMOKE, "seed": pick.seed, "cell": pick.cell, "stages": (pick.stage,)}
    return maker.honest(folder, key, edit=chosen, run=run, source={**SCOPE, **source})


def smalls(folder: Path, key: Path, file: Path, **changes: Any) -> list[Path]:
    """One file for each pick."""
    return [small(folder / f"small-{index}", key, pick, **changes)
            for index, pick in enumerate(picks(file))]  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The command alone: exit status, stdout, stderr."""
    app = typer.Typer()
    app.command()(challenge)
    app.command()(validate)
    words = ["challenge", *map(str, arguments)]
    status = common.run(typer.main.get_command(app), words)
    out, err = capsys.readouterr()
    return status, out, err


def faster(record: Record) -> Record:
    """A candidate four times as fast as base instead of twice."""
    return maker.paced(record, 0.5)


def test_the_nonce_decides_and_nothing_else(file: Path) -> None:
    assert picks(file) == picks(file)
    several = {picks(file, f"nonce-{index}") for index in range(8)}
    assert len({pick.seed for found in several for pick in found}) == 24
    assert {pick.stage for pick in picks(file)} == {"kernels", "perf"}
    orders = {tuple(pick.stage for pick in found) for found in several}
    assert len(orders) > 1


def test_another_file_gets_another_challenge(
    file: Path, keys: dict[str, Path], tmp_path: Path
) -> None:
    other = maker.honest(tmp_path / "other", keys["author"], run={"run_id": "another"})
    assert {pick.seed for pick in picks(file)}.isdisjoint(pick.seed for pick in picks(other))


def test_commands_can_be_typed_as_printed(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    status, out, _ = run(capsys, file, "--nonce", NONCE, "--folder", "a folder")
    assert status == 0
    lines = out.splitlines()
    assert [shlex.split(line)[2:4] for line in lines] == [["a folder", "--target"]] * 3
    for line, pick in zip(lines, picks(file), strict=True):
        words = shlex.split(line)
        assert words[words.index("--cell") + 1] == pick.cell
        assert words[words.index("--seed") + 1] == str(pick.seed)
        context = typer.main.get_command(_validate_app()).make_context("validate", words[2:])
        assert context.params["only"] == [pick.stage]


def _validate_app() -> typer.Typer:
    app = typer.Typer()
    app.command()(validate)
    return app


def test_agreement_is_signed_and_shown(
    capsys: pytest.CaptureFixture[str], file: Path, keys: dict[str, Path], tmp_path: Path
) -> None:
    again = smalls(tmp_path, keys["bob"], file)
    compared = [word for path in again for word in ("--compare", path)]
    status, out, err = run(
        capsys, file, "--nonce", NONCE, *compared, "--key", keys["bob"], "--principal", "bob"
    )
    assert (status, out) == (0, "agrees\n"), err
    found = verify(file)
    reproducer = found.signers[1]
    assert (reproducer.principal, reproducer.role) == ("bob", "reproducer")
    assert reproducer.challenge is not None
    told = {answer.manifest_sha256 for answer in reproducer.challenge.answers}
    assert told == {verify(path).manifest_sha256 for path in again}
    step = next(step for step in found.steps if step.name == "challenges")
    assert f"bob met nonce {NONCE}" in step.detail and "mix/batch=" in step.detail
    assert found.json_value()["signers"][1]["challenge"]["nonce"] == NONCE


@pytest.mark.parametrize(
    ("edit", "answer", "status"),
    [
        (faster, "contradicts", 1),
        (
            lambda r: r.model_copy(update={"candidate": maker.errors(50.0)})
            if r.kind == "kernel" and r.control is None else r,
            "contradicts", 1,
        ),
        (lambda r: None if r.kind == "sample" and r.position else r, "undecided", 3),
        (lambda r: None if r.kind == "kernel" and r.control else r, "undecided", 3),
    ],
    ids=["other-speed", "broken-kernel", "too-few-pairs", "no-planted-fault"],
)  # fmt: skip
def test_anything_else_is_told_and_not_signed(
    capsys: pytest.CaptureFixture[str],
    file: Path,
    keys: dict[str, Path],
    tmp_path: Path,
    edit: Edit,
    answer: str,
    status: int,
) -> None:
    before = file.read_bytes()
    again = smalls(tmp_path, keys["bob"], file, edit=edit)
    compared = [word for path in again for word in ("--compare", path)]
    found, out, _ = run(capsys, file, "--nonce", NONCE, *compared, "--key", keys["bob"], "--json")
    value = json.loads(out)
    assert found == value["status"] == status
    assert answer in {cell["answer"] for cell in value["cells"]}
    assert value["signature"] is None and file.read_bytes() == before


@pytest.mark.parametrize(
    ("source", "why"),
    [({"scope_sha256": "f" * 64}, "other in-scope files"), ({"dirty": True}, "working tree")],
)
def test_only_the_same_files_count(
    capsys: pytest.CaptureFixture[str],
    file: Path,
    keys: dict[str, Path],
    tmp_path: Path,
    source: dict[str, Any],
    why: str,
) -> None:
    again = smalls(tmp_path, keys["bob"], file, **source)
    compared = [word for path in again for word in ("--compare", path)]
    status, _, err = run(capsys, file, "--nonce", NONCE, *compared, "--key", keys["bob"])
    assert status == 3 and why in err


def test_every_cell_is_needed(
    capsys: pytest.CaptureFixture[str], file: Path, keys: dict[str, Path], tmp_path: Path
) -> None:
    one = small(tmp_path / "one", keys["bob"], picks(file)[0])
    status, _, err = run(capsys, file, "--nonce", NONCE, "--compare", one, "--key", keys["bob"])
    assert status == 3 and "no file measured it from this seed" in err


def test_who_signs_must_have_measured(
    capsys: pytest.CaptureFixture[str], file: Path, keys: dict[str, Path], tmp_path: Path
) -> None:
    """Agreement found by one person is not another's to sign."""
    again = smalls(tmp_path, keys["author"], file)
    compared = [word for path in again for word in ("--compare", path)]
    status, _, err = run(capsys, file, "--nonce", NONCE, *compared, "--key", keys["bob"])
    assert status == 2 and "not signed with this key" in err
    # And the author does not reproduce their own file.
    status, _, err = run(capsys, file, "--nonce", NONCE, *compared, "--key", keys["author"])
    assert status == 2 and "cannot vouch for itself" in err


@pytest.mark.parametrize("nonce", ["", "two words", "é", "x" * 129, "a\nb"])
def test_nonce_is_one_word(capsys: pytest.CaptureFixture[str], file: Path, nonce: str) -> None:
    assert run(capsys, file, "--nonce", nonce)[0] == 2


def test_a_seed_of_ones_own_choice_is_refused(file: Path, keys: dict[str, Path]) -> None:
    """A reproducer who says a nonce, and measured from a seed that suits."""
    answers = [
        Answer(stage=p.stage, cell=p.cell, seed=p.seed + 1, manifest_sha256="0" * 64)
        for p in picks(file)
    ]
    sign.sign(
        file, key=keys["bob"], principal="bob", role="reproducer",
        challenge=Challenge(nonce=NONCE, answers=tuple(answers)),
    )  # fmt: skip
    with pytest.raises(VerificationFailed) as caught:
        verify(file)
    assert (caught.value.code, caught.value.cell) == ("VER-038", "signatures/2.json")
