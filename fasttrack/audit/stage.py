"""The audit of compiled code, as a unit of the kernels stage: declared kernels to records.

Owns what is compiled and in which order: one child per architecture compiles the
optimization's kernels and the planted ones. Judges nothing. An optimization that declares
no kernels leaves one record that says so, with the sources that look as if there were some.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fasttrack.audit.facts import examine
from fasttrack.audit.toolchain import Source, Toolchain
from fasttrack.engine.setting import Progress, Setting
from fasttrack.errors import EnvironmentUnmet, RunError
from fasttrack.folders import source_files
from fasttrack.schema import CompiledRecord, Record

CELL = "compiled"
FIRST_ARCH = "sm_90a"
CODE = frozenset({".py", ".cu", ".cuh", ".cc", ".cpp", ".h", ".hpp", ".ptx"})
SIGNS = re.compile(
    rb"griddepcontrol|cudaGridDependencySynchronize|ProgrammaticStreamSerialization"
    rb"|\buse_pdl\b|\blaunch_pdl\b|\bgdc_wait\b|\bcute\.compile\b"
)
"""What sources say that wait for the kernel ahead, or compile kernels with CuTe DSL."""


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """Records of the optimization's compiled kernels and of the plants beside them."""
    plugin = setting.claim.plugin
    if plugin.compiled_kernels is None:
        return [undeclared(setting.folder.resolve())]
    source = Source(plugin.distribution, plugin.compiled_kernels, setting.folder)
    toolchain = Toolchain(timeout_s=setting.timeout_s)
    try:
        records = list(audit(source, toolchain, setting.cell, setting.say))
    except EnvironmentUnmet as error:
        return [CompiledRecord(cell=CELL, status="unavailable", message=str(error))]
    except RunError as error:
        return [CompiledRecord(cell=CELL, status="raised", message=str(error))]
    return list(records) or [
        CompiledRecord(cell=CELL, status="raised", message=f"{source.fallback} lists no kernel")
    ]


def audit(
    source: Source,
    toolchain: Toolchain,
    wanted: str | None = None,
    say: Progress = lambda text: None,
    first: str = FIRST_ARCH,
) -> Iterator[CompiledRecord]:
    """Compile and follow every kernel of `source` whose cell fits the glob `wanted`.

    `first` is asked for first; the answer tells what else there is. Raises `EnvironmentUnmet`
    ENV-007 and `RunError` as `Toolchain.build` does.
    """
    done: set[str] = set()
    waiting = [first]
    while waiting:
        arch = waiting.pop(0)
        done.add(arch)
        say(f"compiling for {arch}")
        build = toolchain.build(source, arch)
        named = [(f"{CELL}/{kernel.name}/{arch}", kernel) for kernel in build.own]
        chosen = [(cell, kernel) for cell, kernel in named if fnmatchcase(cell, wanted or "*")]
        for plant in build.plants if chosen else ():
            yield examine(plant, toolchain, f"{CELL}/{plant.name}/{arch}", control=plant.name)
        for cell, kernel in chosen:
            yield examine(kernel, toolchain, cell)
        waiting = [
            arch for arch in build.archs
            if arch not in done and _may_fit(wanted, arch)
        ]  # fmt: skip


def _may_fit(wanted: str | None, arch: str) -> bool:
    """Whether some cell of that architecture can fit the glob, so that compiling is worth it."""
    last = (wanted or "*").rpartition("/")[2]
    return fnmatchcase(arch, last) or not last.startswith("sm_")


def undeclared(folder: Path) -> CompiledRecord:
    """The record of an optimization that declares no compiled kernels."""
    found = [
        path.relative_to(folder).as_posix()
        for path in source_files(folder)
        if path.suffix in CODE and SIGNS.search(path.read_bytes())
    ]
    if not found:
        return CompiledRecord(cell=CELL, status="none")
    return CompiledRecord(
        cell=CELL,
        status="undeclared",
        message=f"{len(found)} source files compile kernels or wait for the grid ahead, "
        f"{', '.join(found[:5])}, but the claim declares none",
    )
