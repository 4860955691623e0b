"""Protects authors and agents: whatever is wrong with what they typed or wrote ends in a code, a
cause, a next step and the right exit status, before anything is measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Ran, fasttrack, optimization, run_folders

from fasttrack.errors import EXPLANATIONS

TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)


def refused(ran: Ran, code: str, status: int) -> dict[str, Any]:
    """The error of a command run with `--json`, after the checks that hold for all of them."""
    assert ran.status == status, ran.err + ran.out
    error = ran.error
    assert error["code"] == code, error
    assert error["exit_status"] == status
    assert error["cause"] and error["next"]
    assert code in EXPLANATIONS
    # The same for people, on stderr, without a traceback and within bounds.
    assert code in ran.err and "next: " in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err) < 8000
    return error


# Arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate",),
        ("validate", "demo", "--tier", "deep"),
        ("validate", "demo", "--seed", "-1"),
        ("validate", "demo", "--seed", "x"),
        ("validate", "demo", "--timeout", "0"),
        ("validate", "demo", "--no-such-option"),
        ("validate", "demo", "more"),
        ("validate", "demo", "--only", "kernel"),
        ("validate", "demo", "--skip", "speed"),
        ("valdate", "demo"),
        ("explain", "NUM-RATE"),
        ("init", "Not A Name"),
        ("init", "class"),
    ],
    ids=" ".join,
)
def test_arguments_that_make_no_sense(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    optimization(tmp_path)
    refused(fasttrack(tmp_path, *arguments, "--json"), "USE-001", 2)
    assert not (tmp_path / "runs").exists()


def test_an_unknown_code_gets_a_hint(tmp_path: Path) -> None:
    error = refused(fasttrack(tmp_path, "explain", "NUM-RATOI", "--json"), "USE-001", 2)
    assert error["next"] == "fasttrack explain NUM-RATIO"


def test_a_folder_that_is_taken(tmp_path: Path) -> None:
    optimization(tmp_path)
    refused(fasttrack(tmp_path, "init", "demo", "--json"), "USE-002", 2)


@pytest.mark.parametrize("command", ["validate", "plan"])
def test_an_unknown_target(tmp_path: Path, command: str) -> None:
    optimization(tmp_path)
    error = refused(
        fasttrack(tmp_path, command, "demo", "--target", "h100", "--json"), "CLM-004", 2
    )
    assert "fake" in error["next"]


@pytest.mark.parametrize("arguments", [(), ("--help",), ("validate", "--help"), ("--version",)])
def test_help_and_version(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    ran = fasttrack(tmp_path, *arguments)
    assert ran.status == (0 if arguments else 2)
    assert ran.out or ran.err
    assert "Traceback" not in ran.err


# Claims


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("max_model_len = 4096", "max_model_lenght = 4096", "CLM-003",
         "did you mean 'max_model_len'?"),
        ("slower_margin_percent", "slower_margin_ms", "CLM-003",
         "did you mean 'slower_margin_percent'?"),
        ("max_model_len = 4096", "max_model_len = 128", "CLM-005", "impossible grid"),
        ("max_model_len = 4096", "max_model_len = 140", "CLM-005", "do not fit"),
        ("batch = [2]", "batch = [65]", "CLM-005", "max_num_seqs"),
        ("[switch]", "[switch", "CLM-002", "line"),
    ],
)  # fmt: skip
def test_a_bad_claim(tmp_path: Path, old: str, new: str, code: str, says: str) -> None:
    path = optimization(tmp_path) / "claim.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    for command in ("validate", "plan"):
        error = refused(fasttrack(tmp_path, command, "demo", "--json"), code, 2)
        assert says in error["cause"]
        assert "claim.toml" in error["next"] or code == "CLM-005"
    assert not (tmp_path / "runs").exists()


def test_no_claim_at_all(tmp_path: Path) -> None:
    error = refused(fasttrack(tmp_path, "validate", "nowhere", "--json"), "CLM-001", 2)
    assert "nowhere" in error["cause"]


def test_a_huge_claim(tmp_path: Path) -> None:
    (tmp_path / "claim.toml").write_bytes(b"#" * 2**20)
    refused(fasttrack(tmp_path, "validate", ".", "--json"), "CLM-002", 2)


def test_a_policy_that_cannot_be_decided_by(tmp_path: Path) -> None:
    optimization(tmp_path)
    (tmp_path / "policy.toml").write_text("[speed]\nlevel = 0.9\n")
    ran = fasttrack(tmp_path, "validate", "demo", "--policy", "policy.toml", "--json")
    assert "speed.level" in refused(ran, "CLM-003", 2)["cause"]


# Environment


def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    optimization(tmp_path, ('engine = "fake"', 'engine = "warp"'))
    error = refused(fasttrack(tmp_path, "validate", "demo", "--json"), "ENV-002", 4)
    assert "fake" in error["cause"]


CHECKPOINT = '[targets.fake.checkpoint]\nname = "tiny"\n'


@pytest.mark.parametrize(
    ("lines", "code", "says"),
    [
        ("", "ENV-003", "tiny is not at"),
        ('build = ["{python}", "-c", "import sys; sys.exit(9)"]\n', "ENV-003", "status 9"),
        ('build = ["no-such-program", "{out}"]\n', "ENV-003", "No such file"),
        ('build = ["mkdir", "{out}"]\nsha256 = "' + "0" * 64 + '"\n', "ENV-004", "pins 000000"),
    ],
    ids=["missing", "build_fails", "no_program", "wrong_digest"],
)
def test_a_checkpoint_that_cannot_be_used(tmp_path: Path, lines: str, code: str, says: str) -> None:
    grid = "[targets.fake.grid]"
    optimization(tmp_path, (grid, CHECKPOINT + lines + grid))
    error = refused(fasttrack(tmp_path, "validate", "demo", "--json"), code, 4)
    assert says in error["cause"]
    assert error["cell"] == "tiny"


def test_a_checkpoint_that_is_built_on_first_use(tmp_path: Path) -> None:
    grid = "[targets.fake.grid]"
    optimization(tmp_path, (grid, CHECKPOINT + 'build = ["mkdir", "{out}"]\n' + grid))
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "isolation", "--json")
    assert ran.status == 0, ran.err
    assert (tmp_path / ".fasttrack" / "checkpoints" / "tiny").is_dir()


def test_a_switch_the_engine_does_not_know(tmp_path: Path) -> None:
    optimization(tmp_path, ("additional_config.decode_backend", "additional_config.decode_mode"))
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "features", "--json")
    error = refused(ran, "CLM-006", 2)
    assert "additional_config.decode_mode" in error["cause"]


# Kernel cases


@TORCH
def test_an_op_without_a_case(tmp_path: Path) -> None:
    optimization(tmp_path, ('ops = ["scale_add"]', 'ops = ["fused_norm"]'))
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "kernels", "--json")
    (found,) = [item for item in json.loads(ran.out)["open"] if item["cell"] == "fused_norm"]
    assert ran.status == 3
    assert found["code"] == "NUM-ABSENT"
    assert "'fused_norm'" in found["cause"] and "scale_add" in found["cause"]


@TORCH
def test_an_optimization_that_raises_at_import(tmp_path: Path) -> None:
    folder = optimization(tmp_path)
    (folder / "demo" / "ops.py").write_text("raise RuntimeError('planted: at import')\n")
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "kernels", "--json")
    error = refused(ran, "ENG-002", 5)
    assert "RuntimeError: planted: at import" in error["cause"]


@TORCH
def test_a_wrong_kernel_is_named_with_op_cell_and_slice(tmp_path: Path) -> None:
    # One row is off by a percent, in one regime: the author's loop finds it and says where.
    folder = optimization(tmp_path)
    ops = folder / "demo" / "ops.py"
    text = ops.read_text()
    honest = "    return stock(x, weight, residual)\n"
    assert honest in text
    fault = (
        "    y = stock(x, weight, residual)\n    if y.shape[0] == 7:\n        y[5] *= 1.01\n"
        "    return y\n"
    )
    ops.write_text(text.replace(honest, fault))
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "kernels", "--cell", "scale_add/*",
                    "--json")  # fmt: skip
    assert ran.status == 1, ran.err
    found = {item["cell"]: item for item in ran.json["open"] if item["state"] == "FAIL"}
    # Batch 8 meets it too, in the neighbouring shape that runs between its own calls.
    assert set(found) == {"scale_add/batch=7", "scale_add/batch=8"}
    assert found["scale_add/batch=8"]["code"] == "NUM-SHAPE"
    item = found["scale_add/batch=7"]
    assert item["code"] in ("NUM-RATIO", "NUM-CAP")
    assert "scale_add.y" in item["cause"] and "row=5" in item["cause"]
    assert "--cell 'scale_add/batch=7'" in item["next"]
    # The report says so too.
    markdown = fasttrack(tmp_path, "report", ran.json["bundle"], "--markdown").out
    assert "scale_add/batch=7" in markdown and "row=5" in markdown


@TORCH
def test_the_loop_for_one_cell_passes_on_an_honest_kernel(tmp_path: Path) -> None:
    optimization(tmp_path)
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "kernels", "--cell",
                    "scale_add/batch=7", "--json")  # fmt: skip
    assert ran.status == 0, ran.err
    because = ran.json["outcome"]["not_admissible_because"]
    assert "only cells like scale_add/batch=7 were measured" in because
    assert fasttrack(tmp_path, "verify", ran.json["bundle"]).status == 0


def test_a_choice_that_matches_nothing_is_not_a_pass(tmp_path: Path) -> None:
    optimization(tmp_path)
    ran = fasttrack(tmp_path, "validate", "demo", "--only", "perf", "--cell", "batch=3", "--json")
    assert ran.status == 3
    assert run_folders(tmp_path)


# Plain commands


def test_plan_measures_nothing(tmp_path: Path) -> None:
    optimization(tmp_path)
    ran = fasttrack(tmp_path, "plan", "demo", "--json")
    assert ran.status == 0
    told = ran.json
    assert told["cells"] == ["decode/batch=2/context_tokens=128"]
    assert len(told["units"]) == 23
    assert told["targets"] == ["fake"]
    text = fasttrack(tmp_path, "plan", "demo")
    assert text.status == 0
    assert "1 perf cells" in text.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]


def test_doctor_tells_what_is_there(tmp_path: Path) -> None:
    ran = fasttrack(tmp_path, "doctor", "--json")
    assert ran.status in (0, 4)
    assert ran.json["engines"]["fake"] == "ready"
    assert (ran.json["engines"]["vllm"] == "ready") is (ran.status == 0)
    text = fasttrack(tmp_path, "doctor")
    assert text.status == ran.status
    assert "fake" in text.err


def test_every_code_is_explained(tmp_path: Path) -> None:
    told = fasttrack(tmp_path, "explain", "all", "--json").json
    assert set(EXPLANATIONS) <= set(told)
    one = fasttrack(tmp_path, "explain", "eng-004", "--json").json
    assert one["code"] == "ENG-004"
    assert json.dumps(one["meaning"]) in json.dumps(told)
