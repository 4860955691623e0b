"""Protects: in the real engine, a plugin that replaces the sampler at import and the scheduler when
switched on is found and named, although every answer stays right."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fasttrack import engine, isolation, rules
from fasttrack.engine.setting import Setting
from fasttrack.engine.vllm_arguments import NEIGHBOUR
from fasttrack.schema import IsolationRecord, Policy, State, Target

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "tests" / "zoo"))

import zoo_records as zoo  # noqa: E402

ARGUMENTS = {"load_format": "dummy", "skip_tokenizer_init": True}


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    """A claim on the planted plugin, which is installed for children of this test."""
    site = tmp_path / "site" / "patcher-0.1.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: patcher\nVersion: 0.1\n")
    (site / "entry_points.txt").write_text("[vllm.general_plugins]\npatcher = patcher:register\n")
    places = [str(site.parent), str(REPO / "tests" / "plants" / "patcher")]
    path = [*places, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    weights = tmp_path / "weights"
    weights.mkdir()
    config = {**NEIGHBOUR, "architectures": ["PatcherForCausalLM"]}
    (weights / "config.json").write_text(json.dumps(config))
    target = Target(
        engine="vllm", role="development", max_model_len=256, max_num_seqs=4,
        engine_args=ARGUMENTS, grid={"batch": [1], "context_tokens": [16]},
    )  # fmt: skip
    claim = zoo.claim(
        scope={"models": ["PatcherForCausalLM"], "paths": ["patcher/**"], "ops": ["mix"]},
        plugin={"distribution": "patcher", "module": "patcher", "vllm_plugins": ["patcher"]},
    ).model_copy(update={"targets": {"lab": target}})
    return Setting(
        claim=claim, target_name="lab", engine=engine.get("vllm"), checkpoint=weights,
        checkpoint_sha256="none", source_sha256=lambda: "none", logs=tmp_path / "logs",
        folder=REPO / "tests" / "plants" / "patcher", seed=0, timeout_s=240.0,
        say=lambda text: None,
    )  # fmt: skip


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_patched_sampler_and_a_patched_scheduler_are_named(setting: Setting) -> None:
    made = [r for unit in ("neighbour", "model") for r in isolation.run(setting, {"check": unit})]
    verdicts, _ = rules.decide(setting.claim, zoo.run_info(("isolation",)), made, Policy())
    records = {r.subject: r for r in made if isinstance(r, IsolationRecord)}
    states = {v.cell: (v.state, v.reason) for v in verdicts if v.cell in records}
    # Operators, settings, hooks and answers are stock's: what is found is code, and by name.
    assert states == {
        "neighbour": (State.PASS, "OK"),
        "code": (State.FAIL, "ISO-CODE"),
        "switched-on": (State.FAIL, "ISO-ON"),
        "model": (State.FAIL, "ISO-SPREAD"),
    }, {s: r.findings for s, r in records.items()}
    sampler = "vllm.v1.sample.sampler:Sampler.forward"
    scheduler = "vllm.v1.core.sched.scheduler:Scheduler.update_from_output"
    assert {f.where for f in records["code"].findings} == {sampler}
    assert {f.where for f in records["switched-on"].findings} == {sampler}
    assert {f.where for f in records["model"].findings} == {scheduler}
    assert sampler in next(v.detail for v in verdicts if v.cell == "code")
