"""Throw-away repositories with a protected branch, a change, and evidence measured from it.

The optimization lies where `claim_path` says and its code where the claim's scope says, so that
both layouts are tested by the same steps. Evidence is made by `tests/reject/bundle_maker.py`, with
the provenance that a run in this repository would have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1] / "reject"))

import bundle_maker as maker

from fasttrack.bundle import provenance

MAIN = "main"


@dataclass
class Keys:
    """The people of these tests."""

    author: Path
    maintainer: Path
    stranger: Path


def make_keys(folder: Path) -> Keys:
    """Three keys."""
    return Keys(*(maker.write_key(folder / name) for name in ("author", "maintainer", "stranger")))


@dataclass
class Lab:
    """One repository; `change` is the branch under judgement."""

    root: Path
    scratch: Path
    keys: Keys
    source: str
    claim_path: str
    code: str
    """Folder of the code, inside the scope."""

    def git(self, *arguments: str) -> str:
        """Output of a git command in the repository."""
        settings = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
        return subprocess.run(
            ["git", "-C", str(self.root), *settings, *arguments],
            check=True, capture_output=True, text=True, timeout=60,
        ).stdout.strip()  # fmt: skip

    def commit(self, files: Mapping[str, str | bytes | None], branch: str = "change") -> str:
        """Write (or, for None, remove) files on a branch and commit; returns the commit."""
        self.git("checkout", "-q", branch)
        for name, content in files.items():
            path = self.root / name
            if content is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "next", "--allow-empty")
        return self.git("rev-parse", "HEAD")

    @contextmanager
    def wording(self) -> Iterator[None]:
        """The maker writes runs of this repository's claim."""
        with mock.patch.object(maker, "SOURCE", self.source):
            yield

    def measure(self, *, key: Path | None = None, **changes: Any) -> Path:
        """A signed result file of the working tree as it is now, outside the repository."""
        with self.wording():
            state = provenance.git_state(self.root, maker.claim().scope)
            source = {**state, **changes.pop("source", {})}
            folder = self.scratch / f"measured-{len(list(self.scratch.iterdir()))}"
            folder.mkdir()
            return maker.honest(folder, key or self.keys.author, source=source, **changes)

    def bring(self, made: Path, **more: str | bytes | None) -> str:
        """Commit a result file to the change, with other files."""
        return self.commit({f"submissions/2026-11-demo/{made.name}": made.read_bytes(), **more})


def make(
    folder: Path,
    keys: Keys,
    *,
    source: str = maker.SOURCE,
    claim_path: str = "optimizations/demo/claim.toml",
    code: str = "optimizations/demo/ops",
    policy: str | None = None,
) -> Lab:
    """A repository whose protected branch has the optimization, and whose change edits its code."""
    root, scratch = folder / "repository", folder / "scratch"
    root.mkdir()
    scratch.mkdir()
    lab = Lab(root, scratch, keys, source, claim_path, code)
    lab.git("init", "-q", "-b", MAIN)
    signers = (
        f'{maker.PRINCIPAL} namespaces="fasttrack-validation-v1@fasttrack.dev" '
        f"{maker.public_line(keys.author)}\n"
        f'carol namespaces="fasttrack-waiver-v1@fasttrack.dev" '
        f"{maker.public_line(keys.maintainer)}\n"
    )
    first: dict[str, str | bytes | None] = {
        claim_path: source,
        f"{code}/decode.py": "x = 1\n",
        "README.md": "# Readme\n",
        "engine/scheduler.py": "y = 1\n",
        "submissions/allowed_signers": signers,
    }
    if policy is not None:
        first["submissions/policy.toml"] = policy
    (root / ".gitkeep").touch()
    lab.git("add", "-A")
    lab.git("commit", "-q", "-m", "empty")
    lab.commit(first, MAIN)
    lab.git("checkout", "-q", "-b", "change")
    lab.commit({f"{code}/decode.py": "x = 2\n"})
    return lab
