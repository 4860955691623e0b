"""Ahead-of-time compiled units: what identifies one, where it is kept, how it is loaded.

Owns: recipes, finding and loading packages, refusing with a reason. Does not own: the compilation
itself (`build`, run in child processes), the units, the folder (`cache`). Read by: the executor,
kernel cases.

A package is found by a digest of recipe, source of the kernels, torch build and processor; the
folder may be read-only once it is complete.

Packages rather than `torch.compile`: loading takes milliseconds instead of a second of tracing
per unit, and a call costs a few microseconds instead of tens.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kimi_k3.kernels import cache
from kimi_k3.kernels.common import Constants
from kimi_k3.kernels.units import UNITS

logger = logging.getLogger(__name__)

BUILDERS = 2
"""Child processes that compile at once."""

TIME_LIMIT = 1800.0
"""Seconds after which compilation is given up."""

# Sizes given to the varying axes while compiling. They must differ, or the tracer may take two
# axes for one; results do not depend on them.
_SAMPLE = {"tokens": 3, "batch": 5, "context": 48, "slots": 11, "rows": 13}

Kernel = Callable[[list[Tensor]], list[Tensor]]
"""A loaded unit: activations, then weights -> outputs."""


class CompileError(RuntimeError):
    """Compiled units are missing and cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Input:
    """Shape, element strides and dtype of one argument; varying axes have their sample size."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: Tensor, sizes: Sequence[int]) -> Input:
        """Describe `tensor` with its leading axes replaced by `sizes`."""
        shape = (*sizes, *tensor.shape[len(sizes) :])
        strides = tensor.stride()
        if tensor.is_contiguous():
            strides = torch.empty(shape, device="meta").stride()
        return cls(shape, strides, str(tensor.dtype).removeprefix("torch."))

    def example(self) -> Tensor:
        """A tensor of zeros like this."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return torch.empty_strided(self.shape, self.strides, dtype=dtype).zero_()


@dataclass(frozen=True)
class Recipe:
    """One package: a unit for one rank's constants and the shapes of its arguments."""

    unit: str
    constants: Constants
    inputs: tuple[Input, ...]

    @classmethod
    def of(cls, unit: str, constants: Constants, tensors: Sequence[Tensor]) -> Recipe:
        """From arguments as the unit will be called with; only their layout is looked at."""
        axes = UNITS[unit].axes
        padded = (*axes, *[()] * (len(tensors) - len(axes)))
        inputs = [
            Input.of(tensor, [_SAMPLE[name] for name in names])
            for tensor, names in zip(tensors, padded, strict=True)
        ]
        return cls(unit, constants, tuple(inputs))

    def to_json(self) -> dict[str, Any]:
        """Plain data; `from_json` is its inverse."""
        return {
            "unit": self.unit,
            "constants": self.constants._asdict(),
            "inputs": [asdict(one) for one in self.inputs],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recipe:
        """Inverse of `to_json`."""
        inputs = tuple(
            Input(tuple(one["shape"]), tuple(one["strides"]), one["dtype"])
            for one in data["inputs"]
        )
        return cls(data["unit"], Constants(**data["constants"]), inputs)

    def file_name(self) -> str:
        """Name of the package: readable start, digest of everything the code depends on."""
        identity = json.dumps([self.to_json(), _environment()], sort_keys=True)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
        return f"{self.unit}-{digest}.pt2"


@functools.cache
def _environment() -> list[str]:
    """Digest of the kernels' source, torch build, processor features."""
    build = f"{torch.__version__} {torch.version.git_version}"
    return [cache.source(), build, cache.processor()]


def load(recipes: Iterable[Recipe]) -> list[Kernel]:
    """Load one kernel per recipe, compiling what the cache folder lacks.

    Kernels are not safe to call from several threads. Raises CompileError where something is
    missing and the folder is not writable, there is no C++ compiler, or compilation fails.
    """
    folder = cache.folder()
    named = [(folder / recipe.file_name(), recipe) for recipe in recipes]
    missing = {path: recipe for path, recipe in named if not path.is_file()}
    if missing:
        _build(folder, list(missing.values()))
    return [_open(path) for path, _ in named]


def _open(path: Path) -> Kernel:
    try:
        # The public loader flattens its arguments as a tree at every call, and copies them.
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)
    except RuntimeError as error:
        raise CompileError(f"cannot load compiled unit, delete it to rebuild: {path}") from error
    run: Kernel = loader.run
    return run


def _build(folder: Path, recipes: list[Recipe]) -> None:
    """Compile `recipes` into `folder` in child processes, which leave this one's state alone."""
    names = ", ".join(sorted({recipe.unit for recipe in recipes}))
    lacking = f"{len(recipes)} compiled units ({names}) are not in {folder}"
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise CompileError(f"{lacking}, and there is no C++ compiler: install g++ or set CXX")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"it is not writable ({error.strerror})"
        raise CompileError(f"{lacking}, and {reason}: set {cache.VARIABLE}") from error
    logger.warning("%s: compiling them now, once for this machine", lacking)
    shares = [recipes[i::BUILDERS] for i in range(min(BUILDERS, len(recipes)))]
    with tempfile.TemporaryDirectory(prefix="kimi-k3-") as scratch:
        jobs = [_Builder(folder, share, Path(scratch) / str(i)) for i, share in enumerate(shares)]
        try:
            failures = [text for job in jobs if (text := job.wait())]
        finally:
            for job in jobs:
                job.stop()
    if failures:
        raise CompileError(f"{lacking}, and compiling failed:\n" + "\n".join(failures))


class _Builder:
    """One child process at work on a share of the recipes."""

    def __init__(self, folder: Path, recipes: list[Recipe], scratch: Path) -> None:
        scratch.mkdir()
        job = scratch / "job.json"
        job.write_text(json.dumps([recipe.to_json() for recipe in recipes]), encoding="utf-8")
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
            # The number of threads is compiled in; one is right for rows this few.
            "OMP_NUM_THREADS": "1",
        }
        self._log = (scratch / "log").open("w+", encoding="utf-8", errors="replace")
        command = [sys.executable, "-m", "kimi_k3.kernels.build", str(folder), str(job)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def wait(self) -> str:
        """Wait until it ends: empty where it succeeded, else the end of what it printed."""
        try:
            code = self._process.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            return f"no result within {TIME_LIMIT:.0f} s"
        self._log.seek(0)
        return "" if code == 0 else f"exit status {code}\n{self._log.read()[-4000:]}"

    def stop(self) -> None:
        """End the process if it still runs, and close its log."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()
