"""Protects `fasttrack diff`: sees every change, and fails only where a verdict got worse."""

from __future__ import annotations

import json
from pathlib import Path

import bundle_maker as maker
import pytest

from fasttrack.bundle.reader import open_bundle
from fasttrack.cli.diff import diff
from fasttrack.errors import VerificationFailed
from fasttrack.report.compare import CellSpeed, Change, Comparison, compare, worth
from fasttrack.schema import Record, State, Verdict


def slower(factor: float, record: Record) -> Record:
    """The candidate's steps take longer by a factor."""
    return maker.paced(record, factor)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stock's own speed, a little below."""
    where = tmp_path_factory.mktemp("slow") / "run"
    return maker.run_folder(where, edit=lambda r: slower(2.2, r), source={"commit": "f" * 40})


@pytest.fixture(scope="module")
def less_fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Still faster than stock, though less so."""
    where = tmp_path_factory.mktemp("less") / "run"
    return maker.run_folder(where, edit=lambda r: slower(1.3, r))


def compared(before: Path, after: Path) -> Comparison:
    with open_bundle(before) as one, open_bundle(after) as two:
        return compare(one, two)


def test_a_bundle_does_not_differ_from_itself(
    honest: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(run_folder, run_folder)
    assert (found.differences, found.changes) == ((), ())
    assert [speed.overlap for speed in found.speeds] == [True, True]
    assert diff(honest, honest) == 0
    assert "nothing" in capsys.readouterr().out


def test_provenance_and_verdict_changes_are_found(run_folder: Path, slow: Path) -> None:
    found = compared(run_folder, slow)
    seen = {(d.area, d.name): (d.before, d.after) for d in found.differences}
    assert seen[("provenance", "source commit")] == ("a" * 40, "f" * 40)
    assert {(c.rule, c.cell, c.direction) for c in found.changes} == {
        ("outcome", "all", "worse"),
        ("speed", "decode/batch=1/context_tokens=64", "worse"),
        ("speed", "decode/batch=2/context_tokens=64", "worse"),
        ("speed", "sentence", "worse"),
    }
    assert [speed.overlap for speed in found.speeds] == [False, False]


def test_getting_better_is_no_failure(run_folder: Path, slow: Path) -> None:
    found = compared(slow, run_folder)
    assert found.worse == ()
    assert {change.direction for change in found.changes} == {"better"}
    assert diff(slow, run_folder) == 0


def test_less_fast_is_shown_though_no_verdict_changed(run_folder: Path, less_fast: Path) -> None:
    found = compared(run_folder, less_fast)
    assert found.changes == ()
    assert [speed.overlap for speed in found.speeds] == [False, False]
    assert diff(run_folder, less_fast) == 0


def test_a_lost_verdict_is_worse_and_a_new_one_is_not(tmp_path: Path, run_folder: Path) -> None:
    part = maker.run_folder(tmp_path / "run", run={"stages": ("kernels",)})
    assert {c.direction for c in compared(run_folder, part).changes if c.after is None} == {"worse"}
    back = [change for change in compared(part, run_folder).changes if change.before is None]
    assert back and all(change.direction == "changed" for change in back)


def test_engine_policy_and_claim_are_compared(tmp_path: Path, run_folder: Path) -> None:
    def other(record: Record) -> Record:
        if record.kind == "session":
            return record.model_copy(update={"fingerprint": {**record.fingerprint, "vllm": "9"}})
        return record

    policy = maker.Policy(version=2)
    found = compared(run_folder, maker.run_folder(tmp_path / "run", edit=other, policy=policy))
    seen = {(d.area, d.name): (d.before, d.after) for d in found.differences}
    assert seen[("engine", "vllm")] == ("0.32.0", "9")
    assert seen[("policy", "version")] == ("1", "2")
    assert ("run", "policy_sha256") in seen


def test_command_says_all_of_it(
    run_folder: Path, slow: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff(run_folder, slow) == 1
    told = capsys.readouterr()
    for word in ("source commit", "Interval", "overlap", "worse", "SLOWER"):
        assert word in told.out
    assert "4 verdicts got worse" in told.err
    assert diff(run_folder, slow, as_json=True) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["worse"] == 4
    assert value["speeds"][0]["overlap"] is False
    assert value["changes"][0]["direction"] == "worse"


def test_a_file_that_cannot_be_trusted_is_not_compared(tmp_path: Path, honest: Path) -> None:
    data = bytearray(honest.read_bytes())
    data[len(data) // 2] ^= 1
    spoilt = tmp_path / "spoilt.ftb"
    spoilt.write_bytes(data)
    with pytest.raises(VerificationFailed):
        diff(honest, spoilt)


def verdict(lower: float | None, upper: float | None) -> Verdict:
    return Verdict(
        rule="speed", cell="c", state=State.FASTER, reason="OK", detail="", lower=lower,
        upper=upper,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((1.0, 2.0), (2.0, 3.0), True),
        ((1.0, 2.0), (2.1, 3.0), False),
        ((2.1, 3.0), (1.0, 2.0), False),
        ((1.0, 4.0), (2.0, 3.0), True),
        ((None, None), (2.0, 3.0), None),
    ],
)
def test_overlap(one: tuple[float, float], two: tuple[float, float], expected: bool | None) -> None:
    assert CellSpeed("c", verdict(*one), verdict(*two)).overlap is expected
    assert CellSpeed("c", verdict(*one), None).overlap is None


def test_every_state_has_a_place_in_the_order() -> None:
    assert worth(State.FASTER) > worth(State.EQUIVALENT) > worth(State.INCONCLUSIVE)
    assert worth(State.INCONCLUSIVE) > worth(State.SLOWER)
    assert worth(State.PASS) > worth(State.REFUSED_AS_DECLARED) > worth(State.MISSING)
    for state in (State.FAIL, State.SLOWER, State.INFERIOR, State.NOT_EXERCISED):
        assert worth(state) == 0
    assert Change("r", "c", State.MISSING, State.INVALID).direction == "changed"
