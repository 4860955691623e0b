"""Protects CI's answer: only admissible evidence under the reader's rules is green."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "reject"))

import bundle_maker as maker

from fasttrack.bundle import sign
from fasttrack.errors import UsageError
from fasttrack.gate import page
from fasttrack.gate.evidence import Reader
from fasttrack.gate.evidence import gate as judge
from fasttrack.gate.findings import Decision, GateResult
from fasttrack.report.markdown import LIMIT
from fasttrack.schema import Policy, Tier
from fasttrack.schema.policy import GatePolicy, NumericsPolicy
from fasttrack.verify import identity


def gate(
    files: Sequence[Path], *, policy: Policy | None = None, allowed_signers: Path | None
) -> GateResult:
    """The gate's answer about files."""
    allowed = None if allowed_signers is None else identity.read(allowed_signers)
    return judge(files, Reader(policy or Policy(), allowed))


def codes(decision: Decision) -> list[str]:
    """Codes of what was found."""
    return [finding.code for finding in decision.findings]


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
    result = gate([good], allowed_signers=allowed)
    assert result.status == 0
    assert result.decisions[0].findings == ()
    assert "admissible" in page.markdown(result)


def test_no_evidence_is_not_green(allowed: Path) -> None:
    with pytest.raises(UsageError):
        gate([], allowed_signers=allowed)


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"run": {"tier": Tier.SMOKE}}, "GAT-013", "below standard"),
        ({"source": {"dirty": True, "changed_files": 2}}, "GAT-016", "changed after its commit"),
        ({"source": {"dirty": None}}, "GAT-016", "changed after its commit"),
        ({"source": {"commit": None}}, "GAT-016", "no commit"),
    ],
    ids=["tier", "dirty", "unknown-state", "no-commit"],
)
def test_inadmissible_is_told_and_not_green(
    changes: Any, code: str, reason: str, key: Path, allowed: Path, tmp_path: Path
) -> None:
    made = maker.honest(tmp_path, key, **changes)
    result = gate([made], allowed_signers=allowed)
    assert result.status == 3
    (finding,) = result.decisions[0].findings
    assert finding.code == code and reason in finding.text
    assert reason in page.markdown(result) and code in page.markdown(result)


def test_partial_run_is_not_green(key: Path, allowed: Path, tmp_path: Path) -> None:
    stages = ("isolation", "kernels", "path", "features", "evals")
    made = maker.honest(tmp_path, key, run={"stages": stages})
    result = gate([made], allowed_signers=allowed)
    assert result.status == 3
    assert codes(result.decisions[0]) == ["GAT-014"]
    assert result.decisions[0].findings[0].text == "stages left out: perf"


def test_open_questions_are_not_green(key: Path, allowed: Path, tmp_path: Path) -> None:
    made = maker.honest(tmp_path, key, edit=lambda r: None if r.kind == "feature" else r)
    result = gate([made], allowed_signers=allowed)
    assert (result.status, codes(result.decisions[0])) == (3, ["GAT-011"])


def test_development_target_is_not_green(
    key: Path, allowed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = maker.SOURCE.replace('role = "evidence"', 'role = "development"')
    monkeypatch.setattr(maker, "SOURCE", source)
    result = gate([maker.honest(tmp_path, key)], allowed_signers=allowed)
    assert result.status == 3
    assert codes(result.decisions[0]) == ["GAT-012"]


def test_simulated_engine_is_not_green(
    key: Path, allowed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = maker.SOURCE.replace('engine = "vllm"', 'engine = "fake"')
    monkeypatch.setattr(maker, "SOURCE", source)
    result = gate([maker.honest(tmp_path, key)], allowed_signers=allowed)
    assert result.status == 3
    assert codes(result.decisions[0]) == ["GAT-015"]


def test_unknown_signer_is_refused(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "allowed_signers"
    other.write_text(
        f"{maker.PRINCIPAL} {maker.public_line(maker.write_key(tmp_path / 'other'))}\n"
    )
    result = gate([good], allowed_signers=other)
    assert result.status == 6
    assert codes(result.decisions[0]) == ["GAT-019"]
    assert "VER-041" in page.markdown(result)


def test_no_list_of_signers_is_not_green(good: Path) -> None:
    result = gate([good], allowed_signers=None)
    assert result.status == 3
    assert codes(result.decisions[0]) == ["GAT-018"]


def test_tampered_file_is_refused_and_named(good: Path, allowed: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.ftb"
    raw = bytearray(good.read_bytes())
    raw[raw.index(b'"kind":"item"')] ^= 1
    spoilt.write_bytes(bytes(raw))
    result = gate([spoilt, good], allowed_signers=allowed)
    assert [d.status for d in result.decisions] == [6, 0]
    assert result.status == 6
    assert result.json_value()["decisions"][0]["refused"]["code"] == "VER-007"


def test_readers_policy_decides(good: Path, allowed: Path) -> None:
    strict = Policy(numerics=NumericsPolicy(ratio_rms=0.5))
    result = gate([good], policy=strict, allowed_signers=allowed)
    assert result.status == 1
    assert codes(result.decisions[0]) == ["GAT-010"]
    assert any("another policy" in note for note in result.decisions[0].notes)


def test_reproducer_can_be_demanded(good: Path, key: Path, tmp_path: Path) -> None:
    second = maker.write_key(tmp_path / "second")
    allowed = tmp_path / "allowed_signers"
    allowed.write_text(
        f"{maker.PRINCIPAL} {maker.public_line(key)}\nbob {maker.public_line(second)}\n"
    )
    copy = tmp_path / good.name
    copy.write_bytes(good.read_bytes())
    policy = Policy(gate=GatePolicy(reproducers=1))
    before = gate([copy], policy=policy, allowed_signers=allowed)
    assert (before.status, codes(before.decisions[0])) == (3, ["GAT-017"])
    sign.sign(copy, key=second, principal="bob", role="reproducer")
    assert gate([copy], policy=policy, allowed_signers=allowed).status == 0


def test_summary_is_bounded(good: Path, allowed: Path, tmp_path: Path) -> None:
    copies = []
    for index in range(60):
        copy = tmp_path / f"copy-{index}.ftb"
        copy.write_bytes(good.read_bytes()[: 1000 + index])
        copies.append(copy)
    text = page.markdown(gate(copies * 3, allowed_signers=allowed))
    assert len(text.encode()) <= LIMIT


def test_every_finding_is_a_test_case(good: Path, allowed: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.ftb"
    spoilt.write_bytes(good.read_bytes()[:5000])
    suite = ElementTree.fromstring(page.junit(gate([spoilt, good], allowed_signers=allowed)))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [case.get("name") for case in suite] == ["GAT-019", "no findings"]


def test_a_full_summary_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("x" * (page.MAX_SUMMARY_BYTES - 10))
    assert not page.append_summary(path, "eleven chars")
    assert page.append_summary(path, "ten chars.")
    assert path.stat().st_size == page.MAX_SUMMARY_BYTES


def test_hostile_names_do_nothing_in_a_page(good: Path, allowed: Path) -> None:
    (decision,) = gate([good], allowed_signers=allowed).decisions
    hostile = replace(
        decision, name="a.ftb](http://x) <img src=x> @octocat \x1b[2J`", notes=("#1",)
    )
    text = page.markdown(GateResult((hostile,)))
    assert "<img" not in text and "\x1b" not in text and "ftb](http" not in text
    assert "@octocat" not in text and "#1" not in text.replace("#1\u200b", "")
    ElementTree.fromstring(page.junit(GateResult((hostile,))))
