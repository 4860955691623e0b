"""Child of the audit: imports an optimization's list of kernels and compiles it for one arch.

Runs under a Python that has the compiler and perhaps nothing else, so it needs only the standard
library, `declare` and, with a compiler, `plants`. Reads a request from the file named on its
command line and leaves cubins and `answer.json` beside it; what goes wrong with one kernel is told
there and does not stop the rest.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from pathlib import Path
from typing import Any

from fasttrack.audit.declare import GROUP, CompiledKernel

MAX_MESSAGE = 2000
NVDISASM = "nvidia-cuda-nvdisasm"


def main(request_path: str) -> None:
    """Answer one request: the optimization's kernels for one arch; if there are any, the plants.

    Without a compiler the answer holds nothing but an empty `tool`.
    """
    path = Path(request_path)
    request = json.loads(path.read_text())
    answer: dict[str, Any] = {"tool": tool(), "nvdisasm": nvdisasm(), "own": [], "plants": []}
    if answer["tool"]:
        try:
            own = declared(request) if request["fallback"] or request["distribution"] else []
        except BaseException as error:
            answer["error"] = told(error)
            own = []
        arch = request["arch"]
        answer["archs"] = sorted({arch for kernel in own for arch in kernel.archs})
        wanted = [kernel for kernel in own if arch in kernel.archs]
        answer["own"] = [compiled(kernel, arch, path.parent) for kernel in wanted]
        if wanted or request["plants_only"]:
            # A compiler that is older or newer may lack an arch: then each plant says so.
            factory = import_module("fasttrack.audit.plants").compiled_kernels
            answer["plants"] = [compiled(kernel, arch, path.parent) for kernel in factory()]
    (path.parent / "answer.json").write_text(json.dumps(answer))


def declared(request: dict[str, Any]) -> list[CompiledKernel]:
    """The kernels of one distribution, or of ``module:function`` with `folder` on the path; a
    module of the package that `folder` itself is, with the folder above it."""
    factories = [
        point.load()
        for point in entry_points(group=GROUP)
        if point.dist is not None and point.dist.name == request["distribution"]
    ]
    if not factories and request["fallback"]:
        module, _, name = request["fallback"].partition(":")
        folder = Path(request["folder"])
        whole = module.partition(".")[0] == folder.name
        sys.path.insert(0, str(folder.parent if whole else folder))
        factories = [getattr(import_module(module), name)]
    kernels = [kernel for factory in factories for kernel in factory()]
    for kernel in kernels:
        if not isinstance(kernel, CompiledKernel):
            raise TypeError(f"{GROUP} gave a {type(kernel).__name__}, not a CompiledKernel")
    return kernels


def compiled(kernel: CompiledKernel, arch: str, out: Path) -> dict[str, Any]:
    """A kernel's declaration, with the file of its cubin or an error."""
    described: dict[str, Any] = {
        "name": kernel.name,
        "parameters": list(kernel.parameters),
        "static": list(kernel.static),
        "own": list(kernel.own),
        "dependent": kernel.dependent,
        "entry": kernel.entry,
    }
    try:
        cubin = kernel.compile(arch)
        if not isinstance(cubin, bytes) or not cubin.startswith(b"\x7fELF"):
            raise TypeError(f"compile gave no cubin but {type(cubin).__name__}")
        described["cubin"] = hashlib.sha256(cubin).hexdigest()
        (out / described["cubin"]).write_bytes(cubin)
    except BaseException as error:
        described["error"] = told(error)
    return described


def tool() -> str:
    """Compiler and version, e.g. ``nvidia-cutlass-dsl 4.8.1``."""
    try:
        return f"nvidia-cutlass-dsl {version('nvidia-cutlass-dsl')}"
    except PackageNotFoundError:
        return ""


def nvdisasm() -> str:
    """Path of the disassembler installed beside the compiler; empty where there is none."""
    try:
        files: Sequence[Any] = distribution(NVDISASM).files or ()
    except PackageNotFoundError:
        return ""
    return next((str(f.locate()) for f in files if f.name in ("nvdisasm", "nvdisasm.exe")), "")


def told(error: BaseException) -> str:
    """An error in one bounded line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE]


if __name__ == "__main__":
    main(sys.argv[1])
