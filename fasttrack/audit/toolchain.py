"""The programs of the audit: a Python with the kernel compiler, and NVIDIA's disassembler.

Owns finding and running them. Both are data centre tools that need no GPU; where one is missing the
caller gets `EnvironmentUnmet` ENV-007 with the command that installs it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fasttrack
from fasttrack.audit import _compile_child
from fasttrack.errors import EnvironmentUnmet, RunError

PYTHON = "FASTTRACK_CUTE_PYTHON"
"""Environment variable: the Python that has the compiler."""
NVDISASM = "FASTTRACK_NVDISASM"
"""Environment variable: the disassembler."""
INSTALL = "`make cute`, or pip install 'fasttrack[audit]' in a Python 3.12 that {} names"
DISASSEMBLE_S = 120.0


@dataclass(frozen=True)
class Built:
    """One kernel as declared, with its cubin or the reason why there is none."""

    name: str
    arch: str
    parameters: tuple[str, ...]
    static: tuple[str, ...]
    own: tuple[str, ...]
    dependent: bool
    entry: str
    cubin: bytes = b""
    error: str = ""


@dataclass(frozen=True)
class Source:
    """Where an optimization lists its kernels."""

    distribution: str
    fallback: str | None
    folder: Path


@dataclass(frozen=True)
class Build:
    """What one child compiled for one architecture."""

    own: tuple[Built, ...]
    plants: tuple[Built, ...]
    """The harness's planted kernels, by the same compiler; none if there is nothing beside them."""
    archs: tuple[str, ...]
    """Everything the optimization's kernels are compiled for, sorted."""


@dataclass
class Toolchain:
    """A compiler's Python and a disassembler, found when they are first needed."""

    python: str = field(default_factory=lambda: os.environ.get(PYTHON) or sys.executable)
    nvdisasm: str = field(default_factory=lambda: os.environ.get(NVDISASM, ""))
    timeout_s: float = 900.0
    tool: str = ""
    """Versions of both, once they are known."""
    _known: bool = False
    _listings: dict[bytes, str] = field(default_factory=dict)

    def build(self, source: Source | None, arch: str) -> Build:
        """Compile for one architecture what `source` declares; None: the planted kernels alone.

        Raises `EnvironmentUnmet` ENV-007 without a compiler, `RunError` ENG-002 when the list
        cannot be imported and ENG-003 or ENG-004 when the child died or hung.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            request = {
                "distribution": source.distribution if source else "",
                "fallback": source.fallback if source else None,
                "folder": str(source.folder.resolve()) if source else "",
                "arch": arch,
                "plants_only": source is None,
            }
            (folder / "request.json").write_text(json.dumps(request))
            answer = self._ask(folder, arch)

            def built(kernel: dict[str, Any]) -> Built:
                file = kernel.get("cubin", "")
                return Built(
                    name=str(kernel["name"]),
                    arch=arch,
                    parameters=tuple(map(str, kernel["parameters"])),
                    static=tuple(map(str, kernel["static"])),
                    own=tuple(map(str, kernel["own"])),
                    dependent=bool(kernel["dependent"]),
                    entry=str(kernel["entry"]),
                    cubin=(folder / Path(file).name).read_bytes() if file else b"",
                    error=str(kernel.get("error", "")),
                )

            return Build(
                own=tuple(map(built, answer["own"])),
                plants=tuple(map(built, answer["plants"])),
                archs=tuple(map(str, answer["archs"])),
            )

    def disassemble(self, cubin: bytes) -> str:
        """The listing of a cubin; raises `EnvironmentUnmet` ENV-007, `RunError` ENG-006.

        Starting the disassembler takes longer than its work, so listings are kept.
        """
        if cubin in self._listings:
            return self._listings[cubin]
        program = self._disassembler()
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "kernel.cubin"
            path.write_bytes(cubin)
            done = _run([program, str(path)], DISASSEMBLE_S)
        if done.returncode or not done.stdout:
            raise RunError(
                "ENG-006", f"nvdisasm refused the cubin: {done.stderr[-300:].strip()}",
                next_step=f"{program} FILE.cubin",
            )  # fmt: skip
        self._listings[cubin] = done.stdout
        return done.stdout

    def _disassembler(self) -> str:
        found = self.nvdisasm or _compile_child.nvdisasm() or shutil.which("nvdisasm")
        if not found:
            raise EnvironmentUnmet(
                "ENV-007", "there is no nvdisasm here", next_step=INSTALL.format(PYTHON)
            )
        if not self._known:
            version = _run([found, "--version"], DISASSEMBLE_S).stdout.split()
            release = next((word for word in version if word.startswith("V")), "")
            self.tool = ", ".join(filter(None, (self.tool, f"nvdisasm {release}")))
            self.nvdisasm, self._known = found, True
        return self.nvdisasm

    def _ask(self, folder: Path, arch: str) -> dict[str, Any]:
        """Run the child on the request in `folder`."""
        module = "fasttrack.audit._compile_child"
        command = [self.python, "-m", module, str(folder / "request.json")]
        done = _run(command, self.timeout_s, _environment(arch, folder))
        try:
            answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
        except (OSError, ValueError):
            raise RunError(
                "ENG-003",
                f"the compiling child ended with status {done.returncode} and no answer",
                detail=done.stderr[-2000:],
                next_step=f"{self.python} -m {module} REQUEST, by hand",
            ) from None
        if not answer["tool"]:
            raise EnvironmentUnmet(
                "ENV-007", f"{self.python} has no CuTe DSL", next_step=INSTALL.format(PYTHON)
            )
        if "error" in answer:
            raise RunError("ENG-002", f"list of compiled kernels: {answer['error']}")
        self.tool = self.tool or str(answer["tool"])
        self.nvdisasm = self.nvdisasm or str(answer["nvdisasm"])
        return answer


def _environment(arch: str, scratch: Path) -> Mapping[str, str]:
    """What CuTe DSL is told: the architecture, and to keep the machine code."""
    root = str(Path(fasttrack.__file__).parents[1])
    search = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return {
        **os.environ,
        "PYTHONPATH": search,
        "CUTE_DSL_KEEP_CUBIN": "1",
        "CUTE_DSL_DUMP_DIR": str(scratch),
        "CUTE_DSL_ARCH": arch,
    }


def _run(
    command: Iterable[str], timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; raises `EnvironmentUnmet` ENV-007, `RunError` ENG-004."""
    words = list(command)
    try:
        return subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            stdin=subprocess.DEVNULL, env=env,
        )  # fmt: skip
    except OSError as error:
        raise EnvironmentUnmet(
            "ENV-007", f"cannot run {words[0]}: {error.strerror}",
            next_step=INSTALL.format(PYTHON),
        ) from error  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RunError("ENG-004", f"{words[0]} gave no answer in {timeout_s:.0f} s") from None
