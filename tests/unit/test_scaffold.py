"""Protects newcomers: a scaffold is complete, names itself everywhere, and overwrites nothing."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from fasttrack import claim, plan, scaffold
from fasttrack.errors import UsageError
from fasttrack.schema import Tier


@pytest.mark.parametrize("name", ["demo", "my-decode_2"])
def test_a_scaffold_is_complete(tmp_path: Path, name: str) -> None:
    written = scaffold.create(name, tmp_path)
    package = name.replace("-", "_")
    names = {path.relative_to(tmp_path / name).as_posix() for path in written}
    assert names == {
        "AGENTS.md", "README.md", "claim.toml", "pyproject.toml", "tests/test_ops.py",
        f"{package}/__init__.py", f"{package}/cases.py", f"{package}/ops.py",
    }  # fmt: skip
    for path in written:
        text = path.read_text()
        assert "@" not in text.replace("@property", ""), path
        if path.suffix == ".py":
            ast.parse(text)
        if path.suffix == ".toml":
            tomllib.loads(text)
    frozen = claim.load(tmp_path / name)
    assert frozen.claim.name == name
    assert plan.make(frozen.claim, "fake", Tier.SMOKE, 0).units


def test_the_loop_for_agents_is_stated(tmp_path: Path) -> None:
    scaffold.create("demo", tmp_path)
    text = (tmp_path / "demo" / "AGENTS.md").read_text()
    for words in ("fasttrack validate . --only kernels", "--json", "fasttrack explain"):
        assert words in text


@pytest.mark.parametrize("name", ["", "Demo", "1st", "a b", "../up", "a/b", "é", "class", "x" * 70])
def test_names_that_cannot_be_packages(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        scaffold.create(name, tmp_path)
    assert caught.value.code == "USE-001"
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    scaffold.create("demo", tmp_path)
    (tmp_path / "file").write_text("mine")
    for name in ("demo", "file"):
        with pytest.raises(UsageError) as caught:
            scaffold.create(name, tmp_path)
        assert caught.value.code == "USE-002"
    assert (tmp_path / "file").read_text() == "mine"
