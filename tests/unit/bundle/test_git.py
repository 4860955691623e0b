"""Protects the reading of repositories: by objects, at any commit, whatever names and links say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fasttrack.bundle.git import GitError, Repository, scope_digest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, {"a.py": b"a = 1\n", "b/c.py": b"c = 1\n"})
    return folder


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *settings, *arguments],
        check=True, capture_output=True, text=True, errors="surrogateescape", timeout=60,
    ).stdout.strip()  # fmt: skip


def commit(folder: Path, files: dict[str, bytes | None]) -> str:
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "next")
    return git(folder, "rev-parse", "HEAD")


def digest(folder: Path, ref: str = "HEAD") -> str:
    repository = Repository(folder)
    return scope_digest(repository, repository.commit(ref), lambda path: True)[1]


def test_files_at_any_commit(root: Path) -> None:
    first = git(root, "rev-parse", "HEAD")
    second = commit(root, {"a.py": b"a = 2\n", "b/c.py": None, "d.py": b""})
    repository = Repository(root / "b" if (root / "b").exists() else root)
    assert set(repository.files(first)) == {"a.py", "b/c.py"}
    assert repository.read(repository.files(first)["a.py"], 100) == b"a = 1\n"
    assert repository.read(repository.files(second)["a.py"], 100) == b"a = 2\n"
    assert repository.changed(first, second) == {"a.py": "M", "b/c.py": "D", "d.py": "A"}
    assert repository.history(second, 10) == [second, first]
    assert repository.is_ancestor(first, second) and not repository.is_ancestor(second, first)
    assert not repository.is_ancestor("0" * 40, second)


def test_names_of_every_kind(root: Path) -> None:
    names = [
        b"new\nline.py",
        b"tab\t.py",
        b"\xff\xfe.py",
        "ü.py".encode(),
        b'"quoted".py',
        b"-x.py",
    ]
    before = digest(root)
    for name in names:
        (root / os.fsdecode(name)).write_bytes(name)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "names")
    repository = Repository(root)
    head = repository.commit("HEAD")
    found = repository.files(head)
    assert {os.fsencode(name) for name in found} >= set(names)
    for name in names:
        assert repository.read(found[os.fsdecode(name)], 100) == name
    assert digest(root) != before


def test_digest_knows_name_mode_and_kind(root: Path) -> None:
    seen = [digest(root)]
    (root / "a.py").chmod(0o755)
    commit(root, {})
    seen.append(digest(root))
    (root / "a.py").unlink()
    (root / "a.py").symlink_to("a = 1\n")
    commit(root, {})
    seen.append(digest(root))
    commit(root, {"a.py": None, "z.py": b"a = 1\n"})
    seen.append(digest(root))
    assert len(set(seen)) == 4
    assert digest(root, "HEAD~3") == seen[0]


def test_result_files_are_never_in_scope(root: Path) -> None:
    before = digest(root)
    commit(root, {"submissions/x.ftb": b"x"})
    assert digest(root) == before


def test_large_and_many_files(root: Path) -> None:
    content = os.urandom(3 * 2**20)
    commit(root, {"big.bin": content, **{f"many/{n}.py": b"%d" % n for n in range(300)}})
    repository = Repository(root)
    files = repository.files(repository.commit("HEAD"))
    assert repository.read(files["big.bin"], 2**22) == content
    with pytest.raises(GitError):
        repository.read(files["big.bin"], 2**20)
    oids = [blob.oid for blob in files.values()]
    sizes = {oid: size for oid, size, _ in repository.contents(oids)}
    assert sizes[files["big.bin"].oid] == len(content)
    assert len(sizes) == len(set(oids))


@pytest.mark.parametrize("ref", ["nowhere", "--help", "", "HEAD:a.py", "HEAD^{tree}"])
def test_references_that_are_no_commits(root: Path, ref: str) -> None:
    with pytest.raises(GitError):
        Repository(root).commit(ref)


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(GitError):
        Repository(tmp_path)
    with pytest.raises(GitError):
        Repository(tmp_path / "absent")


def test_commits_without_common_history(root: Path) -> None:
    git(root, "checkout", "-q", "--orphan", "other")
    git(root, "commit", "-q", "-m", "other")
    repository = Repository(root)
    with pytest.raises(GitError, match="no history"):
        repository.merge_base(repository.commit("main"), repository.commit("other"))


def test_missing_objects_are_an_error(root: Path) -> None:
    repository = Repository(root)
    with pytest.raises(GitError, match="missing"):
        list(repository.contents(["0" * 40]))


def test_nothing_of_the_repository_runs(root: Path, tmp_path: Path) -> None:
    """Filters, external diffs and hooks that a checkout would run."""
    trap = tmp_path / "ran"
    git(root, "config", "filter.trap.smudge", f"touch {trap}")
    git(root, "config", "filter.trap.textconv", f"touch {trap}")
    git(root, "config", "diff.external", f"touch {trap}")
    git(root, "config", "core.fsmonitor", f"touch {trap}")
    first = git(root, "-c", "core.fsmonitor=false", "rev-parse", "HEAD")
    git(root, "-c", "core.fsmonitor=false", "-c", "filter.trap.smudge=cat", "config", "x.y", "z")
    (root / ".gitattributes").write_text("* filter=trap diff=trap\n")
    git(root, "-c", "core.fsmonitor=false", "add", ".gitattributes")
    git(root, "-c", "core.fsmonitor=false", "commit", "-q", "-m", "trap")
    trap.unlink(missing_ok=True)
    repository = Repository(root)
    head = repository.commit("HEAD")
    repository.changed(first, head)
    repository.read(repository.files(head)["a.py"], 100)
    scope_digest(repository, head, lambda path: True)
    repository.status()
    assert not trap.exists()
