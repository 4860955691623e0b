"""Protects the main path on the fake engine: scaffold, validate, verify, report, sign, gate.

One complete run serves all tests that only read; it is made from an unchanged scaffold, so this is
what a newcomer gets from the first two commands.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Ran, fasttrack, records, run_folders

from fasttrack.bundle.reader import open_bundle
from fasttrack.schema import PathRecord, SampleRecord, State

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which everything happens."""
    return tmp_path_factory.mktemp("newcomer")


@pytest.fixture(scope="module")
def validated(home: Path) -> Ran:
    """`fasttrack init demo`, then `fasttrack validate demo --json`."""
    made = fasttrack(home, "init", "demo")
    assert made.status == 0
    assert made.out == "demo\n"
    assert "next: fasttrack validate demo" in made.err
    return fasttrack(home, "validate", "demo", "--json", packages=True)


@pytest.fixture(scope="module")
def bundle(home: Path, validated: Ran) -> Path:
    """The result file."""
    return home / validated.json["bundle"]


def test_a_scaffold_validates_as_a_no_op(validated: Ran) -> None:
    assert validated.status == 0, validated.err
    outcome = validated.json["outcome"]
    assert outcome["state"] == "PASS"
    assert outcome["admissible"] is False
    assert "target fake has the role development" in outcome["not_admissible_because"]
    assert "Traceback" not in validated.err


def test_a_no_op_is_never_faster(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        cells = [v for v in opened.verdicts if v.cell.startswith("decode/")]
    assert len(cells) == 6
    assert {v.state for v in cells} <= {State.EQUIVALENT, State.INCONCLUSIVE}


def test_the_scaffold_s_own_tests_pass(home: Path, validated: Ran) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "demo/tests"],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(home / "demo")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_stage_left_records_and_verdicts(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        rules = {v.rule for v in opened.verdicts}
        kinds = {type(record).__name__ for record in opened.records()}
    assert rules == {
        "isolation", "numerics", "sanitizer", "hoist", "path", "features", "quality", "prompts",
        "speed",
    }  # fmt: skip
    assert kinds == {
        "IsolationRecord", "KernelRecord", "CompiledRecord", "FeatureRecord", "ItemRecord",
        "SampleRecord", "PathRecord", "SessionRecord", "MonitorRecord", "ConductRecord",
        "CodeRecord", "TraceRecord", "TwinRecord", "StateRecord", "TimelineRecord",
        "RoutingRecord",
    }  # fmt: skip


def test_the_path_evidence_is_there(home: Path, validated: Ran) -> None:
    (run,) = run_folders(home)
    steps = [
        step
        for record in records(run, "perf/*candidate")
        if isinstance(record, PathRecord)
        for step in record.steps
    ]
    assert sum(step.path == "specialised" for step in steps) > 100
    assert all(step.path == "stock" for step in steps if step.prefill_tokens)


def test_progress_is_told_in_plain_lines(validated: Ran) -> None:
    assert "23 units of work; about" in validated.err
    assert "[1/23] isolation: scope" in validated.err
    assert "[23/23] perf: block2" in validated.err
    assert "s left" in validated.err
    assert "Not tested by this run" in validated.err
    assert "verify: fasttrack verify submissions/demo-fake-" in validated.err


def test_json_names_what_needs_attention(validated: Ran) -> None:
    for item in validated.json["open"]:
        assert set(item) == {"code", "cell", "state", "deciding", "cause", "next"}
    assert validated.codes == {"EVAL-FLOOR", "PATH-NO-CODE"}
    assert not any(item["deciding"] for item in validated.json["open"])


def test_the_result_file_verifies(home: Path, bundle: Path) -> None:
    ran = fasttrack(home, "verify", bundle)
    assert ran.status == 0, ran.err
    assert ran.out.startswith("OK ")
    told = fasttrack(home, "verify", bundle, "--json").json
    assert told["outcome"]["state"] == "PASS"


def test_one_changed_byte_is_refused(home: Path, bundle: Path, tmp_path: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    spoilt = tmp_path / "spoilt.ftb"
    spoilt.write_bytes(data)
    ran = fasttrack(home, "verify", spoilt, "--json")
    assert ran.status == 6
    assert ran.error["code"].startswith("VER-")
    assert ran.error["cell"]


def test_the_report_can_be_made_again(home: Path, bundle: Path) -> None:
    ran = fasttrack(home, "report", bundle, "--markdown")
    assert ran.status == 0
    assert "slower nowhere" in ran.out


def test_the_gate_does_not_let_a_development_run_pass(home: Path, bundle: Path) -> None:
    ran = fasttrack(home, "gate", bundle)
    assert ran.status == 3
    assert "role development" in ran.err + ran.out


def test_a_second_signature(home: Path, bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / bundle.name
    shutil.copy(bundle, copy)
    ran = fasttrack(home, "sign", copy, "--development", "--principal", "me", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["principal"] == "me"
    assert fasttrack(home, "verify", copy).status == 0


def test_codes_are_explained(home: Path, validated: Ran) -> None:
    for code in validated.codes:
        ran = fasttrack(home, "explain", code)
        assert ran.status == 0
        assert ran.out.startswith(code)


def test_a_finished_run_is_not_continued(home: Path, validated: Ran) -> None:
    before = {path.name for path in run_folders(home)}
    ran = fasttrack(home, "validate", "demo", "--only", "isolation", "--json")
    assert ran.status == 0
    again = fasttrack(home, "validate", "demo", "--only", "isolation", "--json")
    assert again.json["run"] == f"{ran.json['run']}-2"
    assert {path.name for path in run_folders(home)} > before


def test_only_and_skip_are_told_and_not_admissible(home: Path, validated: Ran) -> None:
    ran = fasttrack(home, "validate", "demo", "--only", "isolation", "--json")
    because = ran.json["outcome"]["not_admissible_because"]
    assert "stages left out: kernels, path, features, evals, perf" in because
    assert "RUN-PARTIAL" in ran.codes
    assert fasttrack(home, "verify", ran.json["bundle"]).status == 0


def test_raw_samples_are_untrimmed(home: Path, validated: Ran) -> None:
    (run,) = [path for path in run_folders(home) if (path / "perf").is_dir()]
    for record in records(run, "perf/block"):
        if isinstance(record, SampleRecord):
            assert record.steps[0].prefill_tokens > 0
            assert len(record.steps) > 24


def test_the_run_folder_holds_the_frozen_claim(home: Path, validated: Ran) -> None:
    (run,) = [path for path in run_folders(home) if (path / "perf").is_dir()]
    assert (run / "claim" / "claim.toml").read_bytes() == (
        home / "demo" / "claim.toml"
    ).read_bytes()
    info = json.loads((run / "claim" / "run.json").read_bytes())
    assert info["command"] == ["fasttrack", "validate", "demo", "--json"]
    assert info["tier"] == "smoke"
