"""Protects which files count as the change, and that shared components are out of reach of a
claim's scope."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

import pytest
import zoo_records as zoo

from fasttrack.errors import UsageError
from fasttrack.isolation import changes
from fasttrack.isolation.components import COMPONENTS, component_of
from fasttrack.schema import Claim, IsolationRecord

SCOPE = {"models": ["ZooForCausalLM"], "ops": ["mix"]}
MODELS = "vllm/model_executor/models"


def claim(*paths: str) -> Claim:
    """A claim on these patterns."""
    return zoo.claim(scope={**SCOPE, "paths": paths or ("zoo/**",)})


class Lab:
    """A repository with a branch `main` that holds the optimization `zoo`, and a branch of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main")
        self.write("zoo/claim.toml", "zoo/zoo/ops.py", "other/x.py", "README.md",
                   f"{MODELS}/llama.py", "vllm/v1/sample/sampler.py")  # fmt: skip
        (root / ".gitignore").write_text("*.o\n")
        self.commit()
        self.git("checkout", "-q", "-b", "mine")

    def git(self, *arguments: str) -> None:
        """Run git, untouched by the user's own settings."""
        named = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(self.root), *named, *arguments], check=True)

    def write(self, *names: str, text: str = "") -> None:
        """Files with their own name, or a text."""
        for name in names:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text or name)

    def commit(self) -> None:
        """Everything as it is."""
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")

    def find(self, base: str | None = None, the_claim: Claim | None = None) -> changes.Change:
        """The change, as seen from the optimization's folder."""
        return changes.find(self.root / "zoo", the_claim or claim(), base)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A fresh one, outside any CI."""
    monkeypatch.delenv(changes.CI_BASE, raising=False)
    return Lab(tmp_path)


def told(record: IsolationRecord) -> list[str]:
    """Files that a record names."""
    return [finding.where for finding in record.findings]


def test_committed_edited_and_untracked_files_count(lab: Lab) -> None:
    lab.write("zoo/zoo/new.py")
    lab.commit()
    lab.write("zoo/zoo/ops.py", text="edited")
    lab.write("zoo/zoo/untracked.py", "zoo/zoo/build.o")
    (lab.root / "other/x.py").unlink()
    change = lab.find()
    assert change.files == {
        "zoo/zoo/new.py": "A",
        "zoo/zoo/ops.py": "M",
        "zoo/zoo/untracked.py": "A",
        "other/x.py": "D",
    }
    assert "left main" in change.origin
    scope, _ = changes.judge(change, claim())
    assert told(scope) == ["other/x.py"]


def test_what_a_run_leaves_is_no_change(lab: Lab) -> None:
    """`fasttrack validate` may be started in the repository, and its folders be ignored or not."""
    lab.write("zoo/zoo/ops.py", text="edited")
    lab.write("runs/x/plan.json", "zoo/runs/y.json", ".fasttrack/logs/z", "submissions/a.ftb",
              "zoo/submissions/b.ftb")  # fmt: skip
    assert set(lab.find().files) == {"zoo/zoo/ops.py"}


def test_a_record_keeps_so_many_findings_and_the_number(lab: Lab) -> None:
    lab.write("zoo/zoo/ops.py", text="edited")
    lab.write(*(f"venv/{n}.py" for n in range(changes.MOST + 7)))
    scope, _ = changes.judge(lab.find(), claim())
    assert len(scope.findings) == changes.MOST
    assert f"{changes.MOST + 7} files are outside" in scope.message


def test_what_the_protected_branch_did_since_does_not_count(lab: Lab) -> None:
    lab.write("zoo/zoo/ops.py", text="mine")
    lab.commit()
    lab.git("checkout", "-q", "main")
    lab.write("other/x.py", text="theirs")
    lab.commit()
    lab.git("checkout", "-q", "mine")
    assert set(lab.find().files) == {"zoo/zoo/ops.py"}


def test_a_named_base_and_that_of_ci(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.write("zoo/zoo/ops.py", text="one")
    lab.commit()
    lab.git("branch", "release")
    lab.write("zoo/claim.toml", text="two")
    lab.commit()
    assert set(lab.find().files) == {"zoo/zoo/ops.py", "zoo/claim.toml"}
    assert set(lab.find("release").files) == {"zoo/claim.toml"}
    monkeypatch.setenv(changes.CI_BASE, "release")
    assert set(lab.find().files) == {"zoo/claim.toml"}
    with pytest.raises(UsageError) as caught:
        lab.find("nowhere")
    assert caught.value.code == "USE-003" and "--base" in caught.value.next_step


def test_a_change_of_something_else_makes_the_whole_folder_the_subject(lab: Lab) -> None:
    whole = {"zoo/claim.toml", "zoo/zoo/ops.py"}
    assert set(lab.find().files) == whole
    lab.write("other/x.py", text="edited")
    change = lab.find()
    assert set(change.files) == whole and "as in main" in change.origin
    assert not told(changes.judge(change, claim())[0])


def test_without_git_the_whole_folder_is_the_subject(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "claim.toml").touch()
    change = changes.find(tmp_path / "zoo", claim(), None)
    assert set(change.files) == {"zoo/claim.toml"} and "whole folder" in change.origin
    assert told(changes.judge(change, claim("zoo/zoo/**"))[0]) == ["zoo/claim.toml"]
    assert not told(changes.judge(change, claim("zoo/*.toml"))[0])


def test_a_folder_without_files_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "zoo").mkdir()
    for record in changes.judge(changes.find(tmp_path / "zoo", claim(), None), claim()):
        assert not all(check.holds for check in record.checks)


# Protected components


def protected(lab: Lab, *paths: str) -> list[tuple[str, str]]:
    """(file, component) of the change under a claim with these patterns."""
    the_claim = claim("zoo/**", *paths)
    _, record = changes.judge(lab.find(the_claim=the_claim), the_claim)
    return [(finding.where, finding.what) for finding in record.findings]


def test_a_shared_component_is_protected_though_in_scope(lab: Lab) -> None:
    lab.write("vllm/v1/sample/sampler.py", text="edited")
    assert protected(lab, "vllm/**") == [("vllm/v1/sample/sampler.py", "sampling")]


def test_another_model_is_protected_and_the_claimed_one_is_not(lab: Lab) -> None:
    lab.write(f"{MODELS}/llama.py", text="class LlamaForCausalLM: ...")
    lab.write(f"{MODELS}/zoo.py", text="class ZooForCausalLM: ...")
    lab.commit()
    lab.git("branch", "-f", "main")
    lab.write(f"{MODELS}/llama.py", text="class LlamaForCausalLM: x = 1")
    lab.write(f"{MODELS}/zoo.py", text="class ZooForCausalLM: x = 1")
    lab.write(f"{MODELS}/zoo_decode.py")
    assert protected(lab, "vllm/**") == [(f"{MODELS}/llama.py", "other models")]
    # The claimed class beside another model's makes the file no more the claim's own.
    both = "class LlamaForCausalLM: ...\nclass ZooForCausalLM: ..."
    lab.write(f"{MODELS}/llama.py", text=both)
    assert protected(lab, "vllm/**") == [(f"{MODELS}/llama.py", "other models")]


def test_the_package_of_the_claimed_model_is_open(lab: Lab) -> None:
    for text in ("", "edited"):
        lab.write("vllm/models/zoo/model.py", text=f"class ZooForCausalLM: '{text}'")
        lab.write("vllm/models/zoo/ops.py", "vllm/models/common/ops.py", text=f"'{text}'")
        if not text:
            lab.commit()
            lab.git("branch", "-f", "main")
    assert protected(lab, "vllm/**") == [("vllm/models/common/ops.py", "other models")]


def test_the_harness_and_other_optimizations_are_protected() -> None:
    for path in ("fasttrack/rules/speed.py", "submissions/policy.toml"):
        component = component_of(path, is_new=True)
        assert component is not None and component.name == "the harness"
    other = component_of("optimizations/other/ops.py", is_new=False)
    assert other is not None and other.name == "other models"
    assert component_of("docs/x.md", is_new=False) is None


def test_every_component_says_why() -> None:
    assert len({component.name for component in COMPONENTS}) == len(COMPONENTS)
    assert all(len(component.why) > 20 for component in COMPONENTS)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_every_pattern_for_vllm_names_files_that_exist() -> None:
    """A renamed file would be protected no more, and nobody would notice."""
    spec = find_spec("vllm")
    assert spec is not None and spec.submodule_search_locations is not None
    root = Path(next(iter(spec.submodule_search_locations)))
    files = [f"vllm/{path.relative_to(root).as_posix()}" for path in root.rglob("*.py")]
    patterns = {p: c for c in COMPONENTS for p in c.patterns if p.startswith("vllm/")}
    assert [p for p in patterns if not any(fnmatchcase(f, p) for f in files)] == []
