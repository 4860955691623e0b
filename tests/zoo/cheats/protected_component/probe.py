"""A change in a checkout of vLLM whose claim covers everything it touches."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from fasttrack.isolation import changes
from fasttrack.schema import Claim

TOUCHED = "vllm/v1/sample/sampler.py"
CLAIM = {
    "schema": "fasttrack.claim/v1",
    "name": "wide",
    "title": "Wide",
    "summary": "Its scope is everything.",
    "scope": {"models": ["ZooForCausalLM"], "paths": ["vllm/**"], "ops": ["none"]},
    "switch": {"key": "additional_config.decode_backend", "base": "auto", "candidate": "fast"},
    "plugin": {"distribution": "wide", "module": "wide"},
    "speed": {"sentence": "slower_nowhere"},
    "targets": {
        "lab": {
            "engine": "fake",
            "role": "development",
            "grid": {"batch": [1], "context_tokens": [64]},
        }
    },
}


def probe(scratch: Path) -> Iterator[tuple[str, str]]:
    """What the isolation stage says of the changed files."""

    def git(*arguments: str) -> None:
        named = ["-c", "user.name=zoo", "-c", "user.email=zoo@example.org"]
        subprocess.run(
            ["git", "-C", str(scratch), *named, "-c", "commit.gpgsign=false", *arguments],
            check=True,
            capture_output=True,
        )

    file = scratch / TOUCHED
    file.parent.mkdir(parents=True)
    file.write_text("class Sampler: ...\n")
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-q", "-m", "stock")
    git("checkout", "-q", "-b", "mine")
    file.write_text("class Sampler:\n    greedy = True\n")
    claim = Claim.model_validate(CLAIM)
    for record in changes.judge(changes.find(scratch / "vllm", claim, "main"), claim):
        for finding in record.findings:
            yield finding.code, finding.where
