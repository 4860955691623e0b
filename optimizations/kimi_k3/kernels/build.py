"""Compile units ahead of time: `python -m kimi_k3.kernels.build FOLDER JOB`.

Owns: tracing a unit, compiling it with Inductor, putting the package in place. Does not own: what
to compile (`compiler`, which starts this in child processes). JOB is a JSON list of recipes.

Several processes, of one engine or of many, may build into one folder: a lock per package keeps
them from doing the same work, and a package appears whole or not at all.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._inductor
from torch import Tensor, nn
from torch.fx.experimental import _config

from kimi_k3.kernels.compiler import Recipe
from kimi_k3.kernels.units import UNITS

# Fused multiply-add: one rounding less in every product that is summed.
_OPTIONS = {"cpp.enable_floating_point_contract_flag": "fast"}


class _Traced(nn.Module):
    """A unit as the tracer wants it."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self._recipe = recipe

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...] | None:
        return UNITS[self._recipe.unit].function(self._recipe.constants, *tensors)


def compile_unit(recipe: Recipe, path: Path) -> None:
    """Compile `recipe` into the package `path`, replacing it atomically."""
    dims = {name: torch.export.Dim(name, min=2) for name in ("context", "slots", "rows")}
    dims |= {name: torch.export.Dim(name, min=1) for name in ("batch", "tokens")}
    axes = UNITS[recipe.unit].axes
    varying = [{axis: dims[name] for axis, name in enumerate(names)} for names in axes]
    static: list[dict[int, object]] = [{} for _ in recipe.inputs[len(axes) :]]
    # Size-oblivious: otherwise the tracer makes one row a case of its own. Measured: code for
    # exactly 1 or 8 rows is no faster than code for any number.
    with torch.no_grad(), _config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        program = torch.export.export(
            _Traced(recipe),
            tuple(one.example() for one in recipe.inputs),
            dynamic_shapes=((*varying, *static),),
            strict=False,
        )
        # The loader looks for a suffix of pt2.
        part = path.with_name(f".{path.stem}.{os.getpid()}.pt2")
        try:
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(part), inductor_configs=_OPTIONS
            )
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock of package `path`; yields False if another process does and `wait` is off."""
    with open(path.with_suffix(".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def build(folder: Path, recipes: list[Recipe]) -> None:
    """Compile what `folder` lacks, leaving for last what other processes are compiling."""
    for wait in (False, True):
        for recipe in recipes:
            path = folder / recipe.file_name()
            with _locked(path, wait) as mine:
                if mine and not path.is_file():
                    compile_unit(recipe, path)


def main(folder: str, job: str) -> None:
    """Compile the recipes listed in the file `job` into `folder`."""
    listed = json.loads(Path(job).read_text(encoding="utf-8"))
    build(Path(folder), [Recipe.from_json(one) for one in listed])


if __name__ == "__main__":
    main(*sys.argv[1:])
