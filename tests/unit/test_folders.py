"""Protects resumption and scope: which files count as source, and a digest that notices changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fasttrack import folders


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small optimization."""
    root = tmp_path / "demo"
    for name in ("claim.toml", "demo/ops.py", "demo/build.md"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def names(root: Path) -> list[str]:
    """Relative names of the source files."""
    return [path.relative_to(root).as_posix() for path in folders.source_files(root)]


def test_source_files_are_sorted(tree: Path) -> None:
    assert names(tree) == ["claim.toml", "demo/build.md", "demo/ops.py"]


@pytest.mark.parametrize(
    "leftover",
    [
        "demo/__pycache__/ops.pyc",
        ".git/HEAD",
        ".pytest_cache/x",
        "build/lib/demo/ops.py",
        "demo.egg-info/PKG-INFO",
        "runs/demo-fake-smoke-1/claim/run.json",
        "submissions/demo.ftb",
        ".fasttrack/checkpoints/x/model.safetensors",
    ],
)
def test_leftovers_and_a_run_s_own_files_do_not_count(tree: Path, leftover: str) -> None:
    before = folders.digest(tree)
    path = tree / leftover
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    assert folders.digest(tree) == before


def test_a_source_folder_called_like_a_run_folder_counts(tree: Path) -> None:
    before = folders.digest(tree)
    (tree / "demo" / "runs").mkdir()
    (tree / "demo" / "runs" / "kernel.py").write_text("x")
    assert folders.digest(tree) != before


def test_the_digest_notices_content_names_and_files(tree: Path) -> None:
    seen = {folders.digest(tree)}
    (tree / "claim.toml").write_text("other")
    seen.add(folders.digest(tree))
    (tree / "claim.toml").rename(tree / "claims.toml")
    seen.add(folders.digest(tree))
    (tree / "empty").touch()
    seen.add(folders.digest(tree))
    assert len(seen) == 4


def test_the_digest_does_not_depend_on_the_place(tree: Path, tmp_path: Path) -> None:
    before = folders.digest(tree)
    moved = tree.rename(tmp_path / "elsewhere")
    assert folders.digest(moved) == before


def test_the_repository_is_the_nearest_one(tree: Path, tmp_path: Path) -> None:
    assert folders.repository_root(tree) == tmp_path
    (tmp_path / ".git").mkdir()
    deep = tree / "demo"
    assert folders.repository_root(deep) == tmp_path
