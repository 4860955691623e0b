"""Protects what enters a bundle about its machine: facts yes, secrets and personal paths no."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from bundle_maker import claim

from fasttrack.bundle import gpu, provenance
from fasttrack.schema._json import canonical_bytes, loads


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_API_KEY", "anything"),
        ("TORCH_HUB_TOKEN", "x"),
        ("NCCL_NET_PASSWORD", "x"),
        ("VLLM_X", "hf_abcdefghijklmnop"),
        ("VLLM_X", "ghp_0123456789abcdefABCDEF"),
        ("VLLM_X", "https://user:word@example.org/x"),
        ("VLLM_X", "AKIAIOSFODNN7EXAMPLE"),
        ("VLLM_X", "q8Zr3vT1mXw9Lk2Pb7Yd5NcH"),
        ("VLLM_X", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"),
    ],
)
def test_secrets_keep_their_name_and_lose_their_value(name: str, value: str) -> None:
    assert provenance.environment({name: value}) == {name: provenance.WITHHELD}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMP_NUM_THREADS", "1"),
        ("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"),
        ("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
        ("NCCL_IB_HCA", "mlx5_0:1,mlx5_1:1"),
        ("FASTTRACK_CONTAINER_DIGEST", "sha256:" + "0123456789abcdef" * 4),
        ("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
        ("PYTHONHASHSEED", "0"),
    ],
)
def test_settings_are_recorded(name: str, value: str) -> None:
    assert provenance.environment({name: value}) == {name: value}


def test_other_variables_are_left_out() -> None:
    assert provenance.environment({"HOME": "/home/ada", "AWS_REGION": "x", "PATH": "/bin"}) == {}


def test_home_folder_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    found = provenance.environment({"VLLM_CACHE_ROOT": "/home/ada/.cache/vllm"})
    assert found == {"VLLM_CACHE_ROOT": "~/.cache/vllm"}


def test_a_command_names_no_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    said = ("fasttrack", f"{tmp_path}/work/claim", f"--out={tmp_path}/out", "--cell", "decode/*")
    told = ("fasttrack", "claim", "--out=~/out", "--cell", "decode/*")
    assert provenance.command(said) == told


def git(repo: Path, *arguments: str) -> None:
    settings = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    subprocess.run(
        ["git", "-C", str(repo), *settings, *arguments], check=True, capture_output=True, timeout=60
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one file in scope and one outside."""
    repo = tmp_path / "repo"
    (repo / "optimizations" / "demo").mkdir(parents=True)
    (repo / "optimizations" / "demo" / "ops.py").write_text("x = 1\n")
    (repo / "README.md").write_text("hello\n")
    git(tmp_path, "init", "-q", str(repo))
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "first")
    return repo


def test_clean_checkout(checkout: Path) -> None:
    state = provenance.git_state(checkout / "optimizations", claim().scope)
    assert len(state["commit"]) == len(state["tree"]) == 40
    assert state["dirty"] is False
    assert state["scope_files"] == 1


def test_changes_are_noticed_and_result_files_are_not_changes(checkout: Path) -> None:
    (checkout / "submissions").mkdir()
    (checkout / "submissions" / "a.ftb").write_text("x")
    assert provenance.git_state(checkout, claim().scope)["dirty"] is False
    (checkout / "new.py").write_text("x")
    state = provenance.git_state(checkout, claim().scope)
    assert (state["dirty"], state["changed_files"]) == (True, 1)


def test_working_state_of_runs_is_no_change(checkout: Path) -> None:
    for name in ("runs/demo/perf.jsonl", ".fasttrack/weights", "optimizations/runs/log"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("x")
    assert provenance.git_state(checkout, claim().scope)["dirty"] is False
    (checkout / "optimizations" / "runs.py").write_text("x")
    assert provenance.git_state(checkout, claim().scope)["changed_files"] == 1


def test_scope_digest_moves_with_the_scope_only(checkout: Path) -> None:
    def after(path: str, text: str) -> str:
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text(text)
        git(checkout, "add", ".")
        git(checkout, "commit", "-q", "-m", "next")
        digest: str = provenance.git_state(checkout, claim().scope)["scope_sha256"]
        return digest

    ops = "optimizations/demo/ops.py"
    first = after("README.md", "changed\n")
    assert after("submissions/a.ftb", "x") == first
    assert after("optimizations/other/ops.py", "x = 3\n") == first
    assert after(ops, "x = 2\n") != first
    assert after(ops, "x = 1\n") == first
    (checkout / ops).chmod(0o755)
    assert after("README.md", "again\n") != first


def test_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", ".")
    assert provenance.git_state(tmp_path, claim().scope)["commit"] is None


def test_folder_without_a_repository(tmp_path: Path) -> None:
    assert provenance.git_state(tmp_path, claim().scope) == {
        "commit": None,
        "tree": None,
        "dirty": None,
    }


def test_collected_provenance_fits_in_a_bundle(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(provenance.CONTAINER_VARIABLE, "sha256:" + "ab" * 32)
    monkeypatch.setattr(provenance, "gpus", lambda: [{"name": "Test GPU"}])
    found = provenance.collect(
        claim(), "gpu-a", checkout / "weights", "c" * 64, checkout, {"prompts": "d" * 64}
    )
    data = canonical_bytes(found.json_value())
    assert canonical_bytes(loads(data)) == data
    assert str(checkout).encode() not in data
    assert found.container_digest == "sha256:" + "ab" * 32
    assert found.checkpoint == {"name": "tiny", "folder": "weights", "sha256": "c" * 64}
    assert found.source["run"] == {"prompts": "d" * 64}
    assert found.source["harness_sha256"] == provenance.harness_digest()
    assert "cryptography" in found.packages
    assert len(found.package_records["cryptography"]) == 64


def test_undeclared_or_malformed_container_digest(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(provenance.CONTAINER_VARIABLE, "latest")
    monkeypatch.setattr(provenance, "gpus", list)
    found = provenance.collect(claim(), "gpu-a", None, None, checkout, {})
    assert found.container_digest is None


def test_gpus_through_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA H200, GPU-1, 580.1'\necho 'NVIDIA H200, GPU-2, 580.1'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(gpu, "_through_nvml", list)
    found = gpu.gpus()
    assert [g["uuid"] for g in found] == ["GPU-1", "GPU-2"]
    assert found[0]["driver_version"] == "580.1"


def test_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "_through_nvml", list)
    assert gpu.gpus() == []


def test_a_machines_name_is_that_of_its_gpus_whatever_their_order() -> None:
    one, other = {"uuid": "GPU-1"}, {"uuid": "GPU-2"}
    assert provenance._name_of([one, other]) == provenance._name_of([other, one])
    assert provenance._name_of([one]) != provenance._name_of([other])


def test_a_machine_without_gpus_is_named_by_its_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"first": "a", "again": "a", "rebooted": "b", "silent": ""}
    names = {}
    for when, boot in told.items():
        monkeypatch.setattr(provenance, "_read", lambda path, boot=boot: boot)
        names[when] = provenance._name_of([{"name": "no uuid told"}])
    assert names["first"] == names["again"] != names["rebooted"]
    assert names["silent"] == ""
