"""Protects agent traffic from end to end: asked for on the command line, planned, recorded, judged,
verified and shown, whether or not it could be replayed; and once for real, where aiperf is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from command_line import fasttrack, optimization, run_folders

from fasttrack import claim, engine
from fasttrack.checkpoints import ensure
from fasttrack.engine.setting import Setting
from fasttrack.perf.agent import client, replay
from fasttrack.rules.path import mismatch
from fasttrack.schema import AgentRecord, MonitorRecord, PathRecord, SessionRecord
from fasttrack.schema.claim import AgentTraffic

REPO = Path(__file__).resolve().parents[2]
CELL = "agent/concurrency=1"
ONLY = ("--only", "perf", "--cell", "agent/*")


def validate(folder: Path, *arguments: object) -> Any:
    """A run of agent traffic alone."""
    return fasttrack(folder, "validate", "demo", "--agent", *ONLY, "--json", *arguments)


def test_a_plan_shows_the_cells_and_their_price(tmp_path: Path) -> None:
    optimization(tmp_path)
    without = fasttrack(tmp_path, "plan", "demo", "--json").json
    told = fasttrack(tmp_path, "plan", "demo", "--agent", "--json").json
    assert set(told["cells"]) - set(without["cells"]) == {CELL}
    added = sorted(set(told["units"]) - set(without["units"]))
    arms = sorted(unit.rpartition("-")[0].rpartition("-")[2] for unit in added)
    assert arms == ["base", "base", "candidate", "candidate"]
    assert told["estimate_s"] >= without["estimate_s"]
    assert CELL in fasttrack(tmp_path, "plan", "demo", "--agent").err


def test_an_engine_without_a_server_loses_no_record_and_passes_nothing(tmp_path: Path) -> None:
    optimization(tmp_path)
    ran = validate(tmp_path)
    assert ran.status == 3, ran.err
    assert ran.codes >= {"AGT-SERVER"}
    (run,) = run_folders(tmp_path)
    assert len(list((run / "perf").glob("agent*.jsonl"))) == 4
    bundle = ran.json["bundle"]
    assert fasttrack(tmp_path, "verify", bundle).status == 0
    report = fasttrack(tmp_path, "report", bundle, "--html", "report.html")
    assert report.status == 0
    page = (tmp_path / "report.html").read_text()
    assert "Agent traffic" in page
    assert "no OpenAI-compatible server" in page


def test_smoke_does_not_replay_unless_it_is_asked_to(tmp_path: Path) -> None:
    folder = optimization(tmp_path)
    text = (folder / "claim.toml").read_text()
    (target,) = [line for line in text.splitlines() if line.startswith("[targets.")][:1]
    name = target.strip("[]").split(".")[1]
    (folder / "claim.toml").write_text(f"{text}\n[targets.{name}.agent]\nconcurrency = [1, 2]\n")
    smoke = fasttrack(tmp_path, "plan", "demo", "--json").json
    assert not [cell for cell in smoke["cells"] if cell.startswith("agent/")]
    standard = fasttrack(tmp_path, "plan", "demo", "--tier", "standard", "--json").json
    assert {CELL, "agent/concurrency=2"} <= set(standard["cells"])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('traces = "nowhere"', "PRF-003"),
        (f'sha256 = "{"0" * 64}"', "PRF-002"),
        ("concurrency = [4]", "PRF-003"),
        ("concurrency = [1, 1]", "CLM-003"),
        ("concurency = [1]", "CLM-003"),
    ],
)
def test_a_bad_table_is_told_before_anything_is_measured(
    tmp_path: Path, line: str, code: str
) -> None:
    folder = optimization(tmp_path)
    text = (folder / "claim.toml").read_text()
    name = next(x for x in text.splitlines() if x.startswith("[targets.")).split(".")[1].strip("]")
    (folder / "claim.toml").write_text(f"{text}\n[targets.{name}.agent]\n{line}\n")
    ran = validate(tmp_path)
    assert (ran.status, ran.error["code"]) == (2, code)
    assert not (tmp_path / "runs").exists()


def test_a_program_that_is_none_is_refused(tmp_path: Path) -> None:
    optimization(tmp_path)
    ran = validate(tmp_path, "--aiperf", "no/such/aiperf")
    assert (ran.status, ran.error["code"]) == (2, "USE-001")
    assert "pip install aiperf" in ran.error["next"]


PROGRAM = client.find(None, REPO / ".cache") or client.find(None, REPO / ".fasttrack")


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.skipif(PROGRAM is None, reason="aiperf is not installed: docs/agent.md")
def test_the_real_client_and_the_real_server_count_alike(tmp_path: Path) -> None:
    pytest.importorskip("kimi_k3")
    known = claim.load(REPO / "optimizations" / "kimi_k3").claim
    target = known.targets["cpu-nano"]
    assert target.checkpoint is not None
    weights, digest = ensure(target.checkpoint, REPO / ".cache" / "checkpoints", tmp_path)
    setting = Setting(
        claim=known,
        target_name="cpu-nano",
        engine=engine.get("vllm"),
        checkpoint=weights,
        checkpoint_sha256=digest,
        source_sha256=lambda: "0" * 64,
        logs=tmp_path / "logs",
        folder=tmp_path,
        seed=0,
        timeout_s=400.0,
        say=lambda text: None,
    )
    spec = {"block": 0, "position": 0, "arm": "candidate", "agent": [2], "shape": [1, 1, 0]}
    two = dataclasses.replace(setting, aiperf=PROGRAM, agent=AgentTraffic(concurrency=(2,)))
    made = replay.run(two, spec)
    found, path, session, watched = made
    assert isinstance(found, AgentRecord) and isinstance(path, PathRecord)
    assert isinstance(session, SessionRecord) and isinstance(watched, MonitorRecord)
    assert (found.status, found.exit_status, len(found.turns)) == ("ok", 0, 19)
    assert found.counters == {
        "requests": 19,
        "prompt_tokens": sum(turn.input_tokens or 0 for turn in found.turns),
        "generated_tokens": sum(turn.output_tokens or 0 for turn in found.turns),
        "cached_tokens": sum(turn.cached_tokens or 0 for turn in found.turns),
    }
    assert found.counters["cached_tokens"] > 0
    assert mismatch(path) == ""
    assert "specialised" in {step.path for step in path.steps}
