"""Protects the verifier itself: its list of steps, its independence, its behaviour on trouble."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import bundle_maker as maker
import pytest

import fasttrack
from fasttrack import rules
from fasttrack.errors import VerificationFailed
from fasttrack.schema import Claim, Policy, Record, State
from fasttrack.schema.policy import NumericsPolicy
from fasttrack.verify import recompute, steps
from fasttrack.verify.steps import verify


def test_docstring_lists_the_steps_in_order() -> None:
    listed = re.findall(r"^ *(\d+)\. +(\w+)", steps.__doc__ or "", re.MULTILINE)
    assert listed == [(str(n), name) for n, (name, _) in enumerate(steps.STEPS, 1)]


def test_result_is_complete_and_json(honest: Path) -> None:
    value = verify(honest).json_value()
    assert value["verified"] is True
    assert [step["number"] for step in value["steps"]] == list(range(1, 15))
    assert value["signers"][0]["principal"] == maker.PRINCIPAL
    assert value["outcome"]["state"] == "PASS"


def test_needs_no_tensors_and_no_network(honest: Path) -> None:
    code = (
        "import sys, socket\n"
        "for name in ('torch', 'vllm', 'numpy'): sys.modules[name] = None\n"
        "def none(*a, **k): raise AssertionError('network')\n"
        "socket.socket = none\n"
        "from pathlib import Path\n"
        "from fasttrack.verify.steps import verify\n"
        "print(verify(Path(sys.argv[1])).outcome.state)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(honest)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "PASS\n", done.stderr


def test_run_folder_is_not_a_result_file(run_folder: Path) -> None:
    with pytest.raises(VerificationFailed) as caught:
        verify(run_folder)
    assert caught.value.code == "VER-010"


def test_readers_policy_decides_anew(honest: Path) -> None:
    strict = Policy(numerics=NumericsPolicy(ratio_rms=0.5))
    found = verify(honest, policy=strict)
    assert found.outcome.state is State.FAIL
    assert verify(honest, policy=Policy()).outcome.state is State.PASS


def test_readers_policy_sees_through_a_loose_one(key: Path, tmp_path: Path) -> None:
    """A run measured under a policy that lets a broken kernel pass."""

    def worse(record: Record) -> Record:
        if record.kind == "kernel" and record.control is None:
            return record.model_copy(update={"candidate": maker.errors(5.0)})
        return record

    loose = Policy(
        numerics=NumericsPolicy(
            ratio_rms=9, ratio_q999=9, ratio_worst_slice_rms=9, ratio_max=9, bias_ratio=9,
            hard_cap=9,
        )
    )  # fmt: skip
    made = maker.honest(tmp_path, key, edit=worse, policy=loose)
    assert verify(made).outcome.state is State.PASS
    assert verify(made, policy=Policy()).outcome.state is State.FAIL


def test_rule_that_stumbles_is_a_refusal(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(rules, "decide", broken)
    with pytest.raises(VerificationFailed) as caught:
        verify(honest)
    assert caught.value.code == "VER-073"
    assert "planted" in caught.value.cause


def test_numbers_are_compared_to_a_billionth(honest: Path) -> None:
    verdict = next(v for v in verify(honest).verdicts if v.estimate)
    near = verdict.model_copy(update={"estimate": verdict.estimate * (1 + 1e-12)})
    far = verdict.model_copy(update={"estimate": verdict.estimate * (1 + 1e-8)})
    assert recompute.difference(near, verdict) == ""
    assert recompute.difference(far, verdict).startswith("estimate")
    gone = verdict.model_copy(update={"estimate": None})
    assert recompute.difference(gone, verdict).startswith("estimate")


def test_other_version_is_named_in_a_mismatch(
    honest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = rules.decide

    def newer(claim: Claim, *rest: Any) -> Any:
        verdicts, outcome = real(claim, *rest)
        return verdicts[1:], outcome

    monkeypatch.setattr(rules, "decide", newer)
    monkeypatch.setattr(fasttrack, "__version__", "9.9.9")
    with pytest.raises(VerificationFailed) as caught:
        verify(honest)
    assert caught.value.code == "VER-071"
    assert f"written by fasttrack {maker.__version__}, read by 9.9.9" in caught.value.cause


def test_report_of_another_build_is_not_compared(key: Path, tmp_path: Path) -> None:
    made = maker.honest(tmp_path, key, source={"harness_sha256": "0" * 64})
    assert "not compared" in verify(made).steps[-1].detail


@pytest.mark.parametrize(
    ("edit", "state"),
    [
        (lambda r: None if r.kind == "feature" else r, "INCONCLUSIVE"),
        (
            lambda r: (
                r.model_copy(update={"candidate": maker.errors(50.0)}) if r.kind == "kernel" else r
            ),
            "FAIL",
        ),
    ],
    ids=["incomplete", "failed"],
)
def test_honest_bad_news_verifies(edit: Any, state: str, key: Path, tmp_path: Path) -> None:
    """Verification is about trust: a file that honestly says FAIL is a good file."""
    assert verify(maker.honest(tmp_path, key, edit=edit)).outcome.state == state
