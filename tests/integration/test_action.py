"""Protects the composite action and the example workflow: their own shell steps are run, as a
runner would run them, against throw-away repositories.

Only what GitHub does itself is imitated: expressions, conditions, the outputs file and `uses: ./`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gate_lab
import pytest
from gate_lab import MAIN, Lab, maker

yaml = pytest.importorskip("yaml")
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")


@dataclass
class Runner:
    """What a step leaves for later ones."""

    folder: Path
    temporary: Path
    context: dict[str, str]
    path: str = os.environ["PATH"]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""

    def value(self, text: str) -> str:
        """A text with its expressions replaced; `a || b` is the first that is not empty."""

        def one(match: re.Match[str]) -> str:
            names = [name.strip() for name in match.group(1).split("||")]
            return next((found for name in names if (found := self._name(name))), "")

        return EXPRESSION.sub(one, text)

    def _name(self, name: str) -> str:
        if name.startswith("steps."):
            _, step, _, output = name.split(".")
            return self.outputs.get(step, {}).get(output, "")
        return self.context.get(name, "")

    def wanted(self, condition: str | None) -> bool:
        """Whether a step's condition holds: none, `name == ''` or `name != ''`."""
        if condition is None:
            return True
        name, operator, empty = condition.split(" ")
        assert empty == "''" and operator in ("==", "!=")
        return (self._name(name) == "") == (operator == "==")

    def run(self, steps: list[dict[str, Any]]) -> int:
        """Exit status of the first step that fails, or 0."""
        for step in steps:
            if not self.wanted(step.get("if")):
                continue
            assert step["shell"] == "bash"
            assert EXPRESSION.search(step["run"]) is None, "an expression inside a script"
            output = self.temporary / "outputs"
            output.write_text("")
            environment = {
                "PATH": self.path,
                "HOME": str(self.temporary),
                "RUNNER_TEMP": str(self.temporary),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(self.temporary / "summary.md"),
                "GITHUB_REPOSITORY": "ada/repository",
                **{name: self.value(str(text)) for name, text in step.get("env", {}).items()},
            }
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.folder, env=environment, check=False, capture_output=True, text=True,
                timeout=120,
            )  # fmt: skip
            self.log += done.stdout + done.stderr
            if "id" in step:
                lines = output.read_text().splitlines()
                self.outputs[step["id"]] = dict(line.split("=", 1) for line in lines)
            if done.returncode:
                return done.returncode
        return 0


@pytest.fixture(scope="module")
def action(repo: Path) -> dict[str, Any]:
    """The action's file."""
    found: dict[str, Any] = yaml.safe_load((repo / "action.yml").read_text())
    return found


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A repository with a change that lacks evidence."""
    (tmp_path / "keys").mkdir()
    return gate_lab.make(tmp_path, gate_lab.make_keys(tmp_path / "keys"))


@pytest.fixture
def program(tmp_path: Path, repo: Path) -> Path:
    """The command, as an installation would give it."""
    path = tmp_path / "fasttrack"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={repo} exec {sys.executable} -m fasttrack "$@"\n')
    path.chmod(0o755)
    return path


def judged(
    action: Mapping[str, Any], folder: Path, scratch: Path, **inputs: str
) -> tuple[int, Runner]:
    """Exit status of the action's steps, and what they left."""
    temporary = scratch / "runner"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    values = {name: str(item.get("default", "")) for name, item in action["inputs"].items()}
    context = {f"inputs.{name}": value for name, value in (values | inputs).items()}
    runner = Runner(folder, temporary, context)
    return runner.run(action["runs"]["steps"]), runner


def test_every_input_is_known(action: dict[str, Any]) -> None:
    text = json.dumps(action)
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == set(action["inputs"])
    assert action["runs"]["using"] == "composite"
    assert not any("uses" in step for step in action["runs"]["steps"])


def test_answers_of_the_action(
    action: dict[str, Any], lab: Lab, program: Path, tmp_path: Path
) -> None:
    """Missing, fresh, stale, still fresh after a rebase, tampered: one repository, step by step."""

    def status() -> tuple[int, str]:
        found, runner = judged(
            action, lab.root, tmp_path, base=MAIN, head="change", program=str(program)
        )
        outputs = runner.outputs["gate"]
        assert outputs["status"] == str(found)
        assert json.loads(Path(outputs["json"]).read_text())["status"] == found
        assert Path(outputs["junit"]).read_text().startswith("<?xml")
        summary = (runner.temporary / "summary.md").read_text()
        assert Path(outputs["comment"]).read_text() == summary
        return found, summary

    found, page = status()
    assert found == 3 and "GAT-001" in page
    made = lab.measure()
    lab.bring(made)
    assert status()[0] == 0
    lab.commit({"README.md": "# Other\n"}, MAIN)
    lab.git("checkout", "-q", "change")
    lab.git("rebase", "-q", MAIN)
    assert status()[0] == 0
    lab.commit({f"{lab.code}/decode.py": "x = 3\n"})
    found, page = status()
    assert found == 3 and "GAT-005" in page
    made.write_bytes(made.read_bytes()[:-100])
    lab.bring(made)
    found, page = status()
    assert found == 6 and "GAT-019" in page and "VER-001" in page


def test_action_says_when_it_cannot_judge(
    action: dict[str, Any], lab: Lab, program: Path, tmp_path: Path
) -> None:
    found, runner = judged(
        action, lab.root, tmp_path, base="nowhere", head="change", program=str(program)
    )
    assert found == 2
    assert "USE-003" in Path(runner.outputs["gate"]["json"]).read_text()


def test_comment_is_asked_for_and_never_decides(
    action: dict[str, Any], lab: Lab, program: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    asked = tmp_path / "asked"
    inputs = {"base": MAIN, "head": "change", "program": str(program), "pull-request": "7"}
    for answer in (0, 1):
        (tools / "gh").write_text(f'#!/bin/sh\necho "$@" >> {asked}\nexit {answer}\n')
        (tools / "gh").chmod(0o755)
        temporary = tmp_path / f"runner-{answer}"
        temporary.mkdir()
        values = {name: str(item.get("default", "")) for name, item in action["inputs"].items()}
        context = {f"inputs.{name}": value for name, value in (values | inputs).items()}
        runner = Runner(lab.root, temporary, context, path=f"{tools}:{os.environ['PATH']}")
        assert runner.run(action["runs"]["steps"]) == 3
        assert ("::warning::" in runner.log) == bool(answer)
    lines = asked.read_text().splitlines()
    assert len(lines) == 3 and all(line.startswith("pr comment 7 --repo ada/") for line in lines)


def test_example_workflow(
    repo: Path, action: dict[str, Any], lab: Lab, program: Path, tmp_path: Path
) -> None:
    """The workflow's own fetch step, then the action it names, from a clone made by it."""
    workflow = yaml.safe_load((repo / ".github/workflows/example-gate.yml").read_text())
    # YAML 1.1 reads the key `on` as a truth value.
    assert set(workflow[True]) == {"pull_request_target", "merge_group"}
    fetch, gate = workflow["jobs"]["gate"]["steps"]
    assert gate["uses"] == "./" and set(gate["with"]) <= set(action["inputs"])
    lab.git("config", "uploadpack.allowAnySHA1InWant", "true")
    lab.bring(lab.measure())
    head = lab.git("rev-parse", "change")
    lab.git("checkout", "-q", MAIN)
    clone, temporary = tmp_path / "clone", tmp_path / "temporary"
    clone.mkdir()
    temporary.mkdir()
    server, _, name = str(lab.root).rpartition("/")
    event = {
        "github.server_url": server,
        "github.repository": name,
        "github.event.pull_request.base.ref": MAIN,
        "github.event.pull_request.head.sha": head,
        "github.token": "secret",
    }
    runner = Runner(clone, temporary, event)
    assert runner.run([fetch]) == 0, runner.log
    assert (clone / lab.code / "decode.py").read_text() == "x = 1\n"
    assert "secret" not in (clone / ".git/config").read_text()
    inputs = {key: runner.value(str(value)) for key, value in gate["with"].items()}
    found, after = judged(action, clone, tmp_path, **{**inputs, "program": str(program)})
    assert found == 0, after.log
    # The same for a merge queue, whose event names both ends otherwise.
    event = {
        "github.server_url": server,
        "github.repository": name,
        "github.event.merge_group.base_ref": f"refs/heads/{MAIN}",
        "github.event.merge_group.head_sha": head,
    }
    assert Runner(clone, temporary, event).run([fetch]) == 0


def test_no_other_action_is_used(repo: Path) -> None:
    for path in (repo / ".github/workflows").glob("*.yml"):
        assert re.findall(r"uses: *(\S+)", path.read_text()) in ([], ["./"])


def test_locks_the_action_installs_from_are_there(repo: Path, action: dict[str, Any]) -> None:
    script = action["runs"]["steps"][0]["run"]
    for name in re.findall(r"\$SOURCE/(\S+)\"", script):
        assert "--hash=" in (repo / name).read_text()
    assert maker.PRINCIPAL not in script
