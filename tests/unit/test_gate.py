"""Protects CI's answer: only admissible evidence under the reader's rules is green."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "reject"))

import bundle_maker as maker

from fasttrack.bundle import sign
from fasttrack.errors import UsageError
from fasttrack.gate import gate
from fasttrack.report.markdown import LIMIT
from fasttrack.schema import Policy, Tier
from fasttrack.schema.claim import NumericsPolicy


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The author's key."""
    return maker.write_key(tmp_path_factory.mktemp("keys") / "author")


@pytest.fixture
def allowed(key: Path, tmp_path: Path) -> Path:
    """A list with the author on it."""
    path = tmp_path / "allowed_signers"
    path.write_text(f"{maker.PRINCIPAL} {maker.public_line(key)}\n")
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """A file with nothing to object to."""
    return maker.honest(tmp_path_factory.mktemp("good"), key)


def test_good_evidence_is_green(good: Path, allowed: Path) -> None:
    result = gate([good], policy=Policy(), allowed_signers=allowed)
    assert result.status == 0
    assert result.decisions[0].reasons == ()
    assert "admissible" in result.markdown()


def test_no_evidence_is_not_green(allowed: Path) -> None:
    with pytest.raises(UsageError):
        gate([], policy=Policy(), allowed_signers=allowed)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": {"tier": Tier.SMOKE}}, "below standard"),
        ({"source": {"dirty": True, "changed_files": 2}}, "changed after its commit"),
        ({"source": {"dirty": None}}, "changed after its commit"),
        ({"source": {"commit": None}}, "no commit"),
    ],
    ids=["tier", "dirty", "unknown-state", "no-commit"],
)
def test_inadmissible_is_told_and_not_green(
    changes: Any, reason: str, key: Path, allowed: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    if "run" in changes:
        plan = maker.plan_value
        monkeypatch.setattr(maker, "plan_value", lambda c: plan(c) | {"tier": "smoke"})
    made = maker.honest(tmp_path, key, **changes)
    result = gate([made], policy=Policy(), allowed_signers=allowed)
    assert result.status == 3
    assert any(reason in text for text in result.decisions[0].reasons)
    assert reason.split()[0] in result.markdown()


def test_partial_run_is_not_green(key: Path, allowed: Path, tmp_path: Path) -> None:
    stages = ("isolation", "kernels", "features", "evals")
    made = maker.honest(tmp_path, key, run={"stages": stages})
    result = gate([made], policy=Policy(), allowed_signers=allowed)
    assert result.status == 3
    assert any("stages left out: perf" in text for text in result.decisions[0].reasons)


def test_development_target_is_not_green(
    key: Path, allowed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = maker.SOURCE.replace('role = "evidence"', 'role = "development"')
    monkeypatch.setattr(maker, "SOURCE", source)
    result = gate([maker.honest(tmp_path, key)], policy=Policy(), allowed_signers=allowed)
    assert result.status == 3
    assert any("role development" in text for text in result.decisions[0].reasons)


def test_simulated_engine_is_not_green(
    key: Path, allowed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = maker.SOURCE.replace('engine = "vllm"', 'engine = "fake"')
    monkeypatch.setattr(maker, "SOURCE", source)
    result = gate([maker.honest(tmp_path, key)], policy=Policy(), allowed_signers=allowed)
    assert result.status == 3
    assert "the engine is simulated" in result.decisions[0].reasons


def test_unknown_signer_is_refused(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "allowed_signers"
    other.write_text(
        f"{maker.PRINCIPAL} {maker.public_line(maker.write_key(tmp_path / 'other'))}\n"
    )
    result = gate([good], policy=Policy(), allowed_signers=other)
    assert result.status == 6
    assert "VER-041" in result.markdown()


def test_no_list_of_signers_is_not_green(good: Path) -> None:
    result = gate([good], policy=Policy(), allowed_signers=None)
    assert result.status == 3
    assert "nobody checked who signed" in result.decisions[0].reasons[0]


def test_tampered_file_is_refused_and_named(good: Path, allowed: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.ftb"
    raw = bytearray(good.read_bytes())
    raw[raw.index(b'"kind":"item"')] ^= 1
    spoilt.write_bytes(bytes(raw))
    result = gate([spoilt, good], policy=Policy(), allowed_signers=allowed)
    assert [d.status for d in result.decisions] == [6, 0]
    assert result.status == 6
    assert result.json_value()["decisions"][0]["refused"]["code"] == "VER-007"


def test_readers_policy_decides(good: Path, allowed: Path) -> None:
    strict = Policy(numerics=NumericsPolicy(ratio_rms=0.5))
    result = gate([good], policy=strict, allowed_signers=allowed)
    assert result.status == 1
    assert "the outcome is FAIL" in result.decisions[0].reasons
    assert any("another policy" in note for note in result.decisions[0].notes)


def test_reproducer_can_be_demanded(good: Path, key: Path, tmp_path: Path) -> None:
    second = maker.write_key(tmp_path / "second")
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(
        f"{maker.PRINCIPAL} {maker.public_line(key)}\nbob {maker.public_line(second)}\n"
    )
    copy = tmp_path / good.name
    copy.write_bytes(good.read_bytes())
    demanded = {"policy": Policy(), "allowed_signers": allowed, "reproduced": True}
    assert gate([copy], **demanded).status == 3
    sign.sign(copy, key=second, principal="bob", role="reproducer")
    assert gate([copy], **demanded).status == 0


def test_summary_is_bounded(good: Path, allowed: Path, tmp_path: Path) -> None:
    copies = []
    for index in range(60):
        copy = tmp_path / f"copy-{index}.ftb"
        copy.write_bytes(good.read_bytes()[: 1000 + index])
        copies.append(copy)
    text = gate(copies * 3, policy=Policy(), allowed_signers=allowed).markdown()
    assert len(text.encode()) <= LIMIT
