"""Protects the detectors end to end: every fault the fake engine can plant is found by `validate`,
with its exit status and code, and none makes the harness itself fall over.

What an honest engine gives is in `test_flow.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from command_line import fasttrack, optimization, records, run_folders, unit_files

from fasttrack.engine._fake_child import FAULTS
from fasttrack.errors import EXPLANATIONS
from fasttrack.evals.tasks import registry
from fasttrack.schema import FailureRecord
from fasttrack.schema.verdict import REASONS


@dataclass(frozen=True)
class Stopped:
    """A fault that stops the run with a coded error in the candidate's first session."""

    fault: str
    code: str
    status: int
    says: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A fault that the rules find: (code, cell) of open verdicts, and the exit status."""

    fault: str
    stage: str
    expected: tuple[tuple[str, str], ...]
    status: int = 1
    engine: dict[str, Any] = field(default_factory=dict)


STOPPED = (
    Stopped("raise_at_import", "ENG-002", 5, "ImportError: planted"),
    Stopped("refuse", "ENG-007", 5, "dtype is wrong; batch is wrong"),
    Stopped("raise_at_start", "ENG-001", 5, "RuntimeError: planted: raised at start"),
    Stopped("hang", "ENG-004", 5, "no answer to 'generate' within 5 s", ("--timeout", "5")),
    Stopped("die", "ENG-003", 5, "killed by SIGKILL"),
    Stopped("ignore_switch", "CLM-006", 2, "'auto'"),
)
CELL = "decode/batch=2/context_tokens=128"
JUDGED = (
    Judged("patched_at_import", "isolation", (("ISO-CODE", "code"), ("ISO-ON", "switched-on"))),
    Judged("registers_op", "isolation", (("ISO-DIFF", "neighbour"),)),
    Judged("takes_architecture", "isolation", (("ISO-DIFF", "neighbour"),)),
    Judged("sets_variable", "isolation", (("ISO-DIFF", "neighbour"),)),
    Judged("sets_flag", "isolation", (("ISO-DIFF", "neighbour"),)),
    Judged("leaves_hook", "isolation", (("ISO-DIFF", "neighbour"),)),
    Judged("changes_neighbour", "isolation", (("ISO-DIFF", "neighbour"),)),
    Judged("patched_when_on", "isolation", (("ISO-ON", "switched-on"), ("ISO-SPREAD", "model"))),
    Judged("patched_model", "isolation", (("ISO-SPREAD", "model"),)),
    Judged("loads_a_test", "isolation", (("ISO-COPY", "model"),)),
    Judged("no_path", "features", (("PATH-NONE", "features/candidate"),)),
    Judged("no_path", "perf", (("PATH-NONE", CELL), ("SPD-SENTENCE", "sentence"))),
    Judged("falls_back_in_evals", "evals", (("PATH-NONE", "evals/candidate"),)),
    Judged("prefill_specialised", "features", (("PATH-PREFILL", "features/candidate"),)),
    Judged(
        "base_specialised", "features", (("PATH-BASE", "features/base"),),
        engine={"fault_arm": "base"},
    ),
    Judged("wrong_token", "features", (("FEAT-LOST", "logprobs"), ("FEAT-LOST", "prefix_cache"))),
    Judged("wrong_token", "evals", (("EVAL-DIVERGED", "long-chain/divergence"),)),
    Judged("broken_json", "features", (("FEAT-LOST", "structured_output"),)),
    Judged("lost_stop", "features", (("FEAT-LOST", "stop_strings"),)),
    Judged("ignores_seed", "features", (("FEAT-LOST", "seeds"),)),
    Judged("ignores_top_k", "features", (("FEAT-LOST", "sampling"),)),
    Judged("no_penalties", "features", (("FEAT-LOST", "penalties"),)),
    Judged("no_bias", "features", (("FEAT-LOST", "token_bias"),)),
    Judged("lost_delta", "features", (("FEAT-LOST", "streaming"),)),
    Judged("same_samples", "features", (("FEAT-LOST", "parallel_samples"),)),
    Judged("truncates", "features", (("FEAT-LOST", "full_context"),)),
    Judged("null_slot", "features", (("FEAT-LOST", "batch_edges"),)),
    Judged("lost_preempted", "features", (("FEAT-LOST", "preemption"),)),
    Judged("abort_leaks", "features", (("FEAT-LOST", "abort"),)),
    Judged("bad_drafts", "features", (("FEAT-LOST", "speculation"),)),
    Judged("refuses_lora", "features", (("FEAT-UNDECLARED", "lora"),)),
    Judged("nan_state", "features", (("FEAT-LOST", "finite"),)),
    Judged("no_logprobs", "features", (("FEAT-LOST", "logprobs"),)),
    Judged("no_logprobs", "evals", (("EVAL-DIVERGED", "long-chain/divergence"),)),
    Judged("stale_prefix", "features", (("FEAT-LOST", "prefix_cache"),)),
    Judged("shed_load", "features", (("FEAT-LOST", "chunked_prefill"),)),
    Judged("shed_load", "evals", (("EVAL-INCOMPLETE", "long-chain"),), status=3),
    Judged("shed_load", "perf", (("VAL-TOKENS", CELL), ("SPD-SENTENCE", "sentence")), status=3),
    Judged(
        "changed_build", "perf", (("VAL-ENGINE", CELL), ("SPD-SENTENCE", "sentence")), status=3
    ),
    Judged("logs_specialised_runs_stock", "path", (
        ("PATH-TRACE", "path/features/trace"), ("PATH-WATERMARK", "path/evals/watermark"))),
    Judged("ignores_watermark", "path", (("PATH-WATERMARK", "path/perf/batch=2/watermark"),)),
    Judged("writes_null_slot", "path", (("PATH-NULL-SLOT", "path/state"),)),
    Judged("writes_foreign_slot", "path", (("PATH-FOREIGN-WRITE", "path/state"),)),
    Judged("writes_more_than_it_logs", "path", (("PATH-UNLOGGED-WRITE", "path/state"),)),
    Judged("drifts_when_alternating", "path", (("PATH-DRIFT", "path/alternation"),)),
    Judged("slow", "perf", (("SPD-SLOWER", CELL), ("SPD-SENTENCE", "sentence"))),
)  # fmt: skip


@pytest.mark.parametrize("case", STOPPED, ids=lambda case: case.fault)
def test_a_fault_that_stops_the_run(case: Stopped, tmp_path: Path) -> None:
    optimization(tmp_path, fault=case.fault)
    command = ("validate", "demo", "--only", "features", "--json", *case.arguments)
    ran = fasttrack(tmp_path, *command)
    assert ran.status == case.status, ran.err
    error = ran.error
    assert set(error) == {"code", "cell", "cause", "next", "exit_status"}
    assert (error["code"], error["exit_status"]) == (case.code, case.status)
    assert case.says in error["cause"]
    assert error["next"]
    assert case.code in ran.err and case.code in EXPLANATIONS
    assert "Traceback" not in ran.err
    # What was finished is kept, and the failure is on record.
    (run,) = run_folders(tmp_path)
    kept = unit_files(run)
    assert [name.split("-")[0] for name in kept] == ["features/base"]
    (failure,) = records(run, "features/failures")
    assert isinstance(failure, FailureRecord)
    assert (failure.code, failure.unit.split("-")[0]) == (case.code, "candidate")
    # The same command goes on there: base is not measured again.
    if case.fault != "hang":
        assert fasttrack(tmp_path, *command).error["code"] == case.code
        assert run_folders(tmp_path) == [run]
        assert unit_files(run) == kept
        assert len(records(run, "features/failures")) == 2


def test_tracebacks_are_for_those_who_ask(tmp_path: Path) -> None:
    optimization(tmp_path, fault="raise_at_start")
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "features", "-v")
    assert ran.status == 5
    # The child's own traceback, and ours.
    assert "RuntimeError: planted: raised at start" in ran.err
    assert ran.err.count("Traceback (most recent call last)") >= 2


@pytest.mark.parametrize("case", JUDGED, ids=lambda case: f"{case.fault}-{case.stage}")
def test_a_fault_that_the_rules_find(case: Judged, tmp_path: Path) -> None:
    optimization(tmp_path, fault=case.fault, **case.engine)
    ran = fasttrack(tmp_path, "validate", "demo", "--only", case.stage, "--json")
    assert ran.status == case.status, ran.err
    assert "Traceback" not in ran.err
    found = {(item["code"], item["cell"]): item for item in ran.json["open"]}
    for key in case.expected:
        assert key in found, found
        assert found[key]["cause"]
        assert found[key]["next"].startswith("fasttrack validate")
        assert key[0] in REASONS
    assert ran.json["outcome"]["state"] == {1: "FAIL", 3: "INCONCLUSIVE"}[case.status]


def test_a_fallback_shows_in_exactly_its_cells(tmp_path: Path) -> None:
    grid = ("batch = [2]", "batch = [2, 8, 16]")
    optimization(tmp_path, fault="falls_back_above_8")
    claim = tmp_path / "demo" / "claim.toml"
    claim.write_text(claim.read_text().replace(*grid))
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "evals", "--only", "perf", "--json")
    assert ran.status == 1, ran.err
    cell = "decode/batch=16/context_tokens=128"
    found = {(item["code"], item["cell"]) for item in ran.json["open"]}
    assert {key for key in found if key[0].startswith(("PATH", "SPD"))} == {
        *(
            ("PATH-NONE", f"evals/candidate/{task.name}/{repeat}/concurrency=16/rows=9-16")
            for task in registry()
            for repeat in ("main", "replay")
        ),
        ("PATH-NONE", f"perf/candidate/{cell}"),
        ("PATH-NONE", cell),
        ("SPD-SENTENCE", "sentence"),
    }
    # Declared by a grid that ends at 8, the same behaviour is within the claim.
    claim.write_text(claim.read_text().replace("[2, 8, 16]", "[2, 8]"))
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "evals", "--only", "perf", "--json")
    assert ran.status == 0, ran.err


def test_cases_of_other_code_than_the_engine_s_are_found(tmp_path: Path) -> None:
    optimization(tmp_path, fault="runs_other_code")
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "kernels", "--only", "path", "--json")
    assert ran.status == 1, ran.err
    (found,) = (item for item in ran.json["open"] if item["code"] == "PATH-OTHER-CODE")
    assert found["cell"] == "path/code" and "planted.so" in found["cause"]


def test_stray_output_does_no_harm(tmp_path: Path) -> None:
    optimization(tmp_path, fault="chatter")
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "features", "--only", "evals", "--json")
    assert ran.status == 0, ran.err
    (run,) = run_folders(tmp_path)
    assert "stray output" in (run / "logs" / "features-candidate.log").read_text()


def test_a_refusal_of_unrelated_models_is_told_and_no_failure(tmp_path: Path) -> None:
    optimization(tmp_path, fault="refuses_neighbours")
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "isolation", "--json")
    assert ran.status == 0, ran.err
    (run,) = run_folders(tmp_path)
    assert "does not start with the switch on" in (run / "report" / "report.md").read_text()


def test_a_real_gain_is_found(tmp_path: Path) -> None:
    optimization(
        tmp_path, ('sentence = "slower_nowhere"', 'sentence = "faster_everywhere"'), speedup=1.5
    )
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "perf")
    assert ran.status == 0, ran.err
    assert "FASTER" in ran.err


def test_every_fault_is_tried() -> None:
    tried = {case.fault for case in (*STOPPED, *JUDGED)} | {
        "refuses_neighbours",
        "chatter",
        "falls_back_above_8",
        "runs_other_code",
    }
    # Faults of external evals are tried in test_external_evals, those of the sweep in the zoo.
    elsewhere = [Path(__file__).parent / "test_external_evals.py"]
    elsewhere += (Path(__file__).parents[1] / "zoo" / "cheats").glob("*/zoo.toml")
    told = "".join(path.read_text() for path in elsewhere)
    tried |= {fault for fault in FAULTS if f'"{fault}"' in told}
    assert tried == set(FAULTS)
