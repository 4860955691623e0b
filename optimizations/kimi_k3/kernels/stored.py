"""Compiled GPU kernels on disk: a process compiles only what none before it has.

Owns: a kernel's file name, reading it, writing it whole or not at all. Does not own: compiling
(`gpu`), the folder (`cache`). Measured for the experts of 8 rows: 2.0 s to compile, 0.16 s to
store, 3 ms to load; an engine has some seventy kernels.

What cannot be stored is compiled in every process, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cuda.bindings.driver as cuda
from cutlass.runtime import load_module

from kimi_k3.kernels import cache as kept

ARCH_VARIABLE = "CUTE_DSL_ARCH"
HARMLESS = frozenset({ARCH_VARIABLE, "CUTE_DSL_CACHE_DIR"})
"""Variables of the compiler that change no code. FlashInfer sets the second in every engine."""
_COMPILER = "nvidia-cutlass-dsl"


def path(kind: type, form: tuple[Any, ...]) -> Path | None:
    """The file of a kernel of this class and form; None where it must be compiled: no device is
    known to compile for, or a variable of the compiler asks for something, such as a dump."""
    if any(name.startswith("CUTE_DSL_") and name not in HARMLESS for name in os.environ):
        return None
    arch = os.environ.get(ARCH_VARIABLE) or _arch()
    if arch is None:
        return None
    name = f"{kind.__module__}.{kind.__qualname__}"
    told = [name, repr(form), arch, version(_COMPILER), kept.source(), kept.processor()]
    digest = hashlib.sha256("\0".join(told).encode()).hexdigest()[:32]
    return kept.folder() / "gpu" / f"{kind.__name__}-{digest}.o"


def load(file: Path) -> Any | None:
    """The launcher in `file`; None if there is no such file or it is damaged."""
    if not file.is_file():
        return None
    try:
        return load_module(str(file))[_prefix(file)]
    except Exception:  # of the compiler's own kinds; it is written anew
        return None


def store(file: Path, compiled: Any) -> None:
    """Write a compiled launcher; a folder that cannot be written is left as it is."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".") as part:
            compiled.export_to_c(part, file.stem, function_prefix=_prefix(file))
            os.replace(Path(part) / file.name, file)


def _prefix(file: Path) -> str:
    """Of the symbols in an object file: its own, so that no two of a process are alike."""
    return file.stem.replace("-", "_")


@cache
def _arch() -> str | None:
    """Compute capability of the first GPU; None without one."""
    attribute = cuda.CUdevice_attribute
    wanted = (
        attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    )
    if cuda.cuInit(0)[0] != cuda.CUresult.CUDA_SUCCESS:
        return None
    found = [cuda.cuDeviceGetAttribute(one, cuda.CUdevice(0)) for one in wanted]
    if any(error != cuda.CUresult.CUDA_SUCCESS for error, _ in found):
        return None
    return ".".join(str(value) for _, value in found)
