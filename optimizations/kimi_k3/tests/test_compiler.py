"""The compiler's cache and refusals.

Protects: what identifies a compiled package, where packages are kept, every way of failing to
get one. For each refusal there is the case in which the same folder serves.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kimi_k3.cases import common
from kimi_k3.dims import Dims
from kimi_k3.kernels import cache, compiler
from kimi_k3.kernels.common import Constants
from kimi_k3.kernels.compiler import CompileError, Recipe
from kimi_k3.presets import NANO

DIMS = common.DIMS


def _recipe(rows: int = 3, slots: int = 9, pitch: int = 512, dims: Dims = DIMS) -> Recipe:
    """One of the unit `kda`; only the layout of the arguments matters."""
    c = Constants.of(dims, 1)
    state = torch.empty_strided((slots, 4, 8), (pitch, 8, 1))
    x = torch.zeros(rows, 8)
    row = torch.zeros(rows, dtype=torch.int64)
    tensors = [x, x[:, None], torch.zeros(3), state, state, row, row > 0, torch.zeros(8)]
    return Recipe.of("kda", c, tensors)


def test_recipe_survives_its_file() -> None:
    recipe = _recipe()
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_package_depends_on_layout_and_constants_but_not_on_sizes_that_vary() -> None:
    name = _recipe().file_name()
    assert _recipe(rows=17, slots=300).file_name() == name
    assert _recipe(pitch=1024).file_name() != name
    other = Dims.from_config(NANO | {"rms_norm_eps": 1e-6})
    assert _recipe(dims=other).file_name() != name


def test_models_of_other_depth_share_packages() -> None:
    assert _recipe(dims=Dims.from_config(NANO)).file_name() == _recipe().file_name()


def test_package_depends_on_the_source_and_the_torch_build(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = _recipe()
    name = recipe.file_name()
    real = list(compiler._environment())
    for part in range(len(real)):
        changed = [*real[:part], real[part] + "x", *real[part + 1 :]]
        monkeypatch.setattr(compiler, "_environment", lambda changed=changed: changed)
        assert recipe.file_name() != name


def test_cache_folder_is_the_variable_then_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, "/named")
    assert cache.folder() == Path("/named")
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.folder() == Path("/x/kimi_k3")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder() == Path.home() / ".cache" / "kimi_k3"


def _final() -> tuple[Recipe, list[Tensor]]:
    """The smallest unit, and arguments of three rows for it."""
    tensors = [torch.randn(3, DIMS.hidden), torch.randn(3, DIMS.blocks, DIMS.hidden)]
    tensors += [torch.randn(DIMS.hidden), torch.randn(DIMS.hidden)]
    return Recipe.of("final", common.constants(), tensors), tensors


def test_refuses_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "nothing-here"))
    with pytest.raises(CompileError, match=r"\(final\).*install g\+\+ or set CXX"):
        compiler.load([_final()[0]])


def test_refuses_a_folder_it_cannot_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A file in the way stops even a superuser, whom permissions do not.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(CompileError, match=f"not writable.*set {cache.VARIABLE}"):
        compiler.load([_final()[0]])


def test_failed_compilation_is_reported_and_leaves_no_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    broken = tmp_path / "broken-compiler"
    broken.write_text("#!/bin/sh\necho this compiler is broken >&2\nexit 1\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompileError, match="compiling failed"):
        compiler.load([_final()[0]])
    assert not list(tmp_path.glob("*.pt2"))


def test_builder_that_dies_silently_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CompileError, match="exit status 1"):
        compiler.load([_final()[0]])


def test_complete_folder_is_enough_even_read_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe, tensors = _final()
    wanted = compiler.load([recipe])[0](tensors)[0]  # made here, if it never was before
    package = cache.folder() / recipe.file_name()
    (tmp_path / package.name).write_bytes(package.read_bytes())
    before = os.listdir(tmp_path)
    tmp_path.chmod(0o500)
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    assert torch.equal(compiler.load([recipe])[0](tensors)[0], wanted)
    tmp_path.chmod(0o700)
    assert os.listdir(tmp_path) == before


def test_damaged_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe, _ = _final()
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    (tmp_path / recipe.file_name()).write_bytes(b"not a package")
    with pytest.raises(CompileError, match=f"delete it to rebuild.*{recipe.file_name()}"):
        compiler.load([recipe])
