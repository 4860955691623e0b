"""The audit of compiled code, as a unit of the kernels stage: declared kernels to records.

Owns what is compiled and in which order: for each architecture the planted kernels, then the
optimization's own, each list in a child of its own. Judges nothing. An optimization that declares
no kernels leaves one record that says so, with the sources that look as if there were some.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fasttrack.audit.facts import examine
from fasttrack.audit.toolchain import OWN_PLANTS, Source, Toolchain
from fasttrack.engine.setting import Setting
from fasttrack.errors import EnvironmentUnmet, RunError
from fasttrack.folders import source_files
from fasttrack.schema import CompiledRecord, Record

CELL = "compiled"
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
    source: Source, toolchain: Toolchain, wanted: str | None = None, say: Any = lambda text: None
) -> Iterator[CompiledRecord]:
    """Compile and follow every kernel of `source` whose cell fits the glob `wanted`.

    Raises `EnvironmentUnmet` ENV-007 and `RunError` as `Toolchain.build` does.
    """
    for arch in toolchain.archs(source):
        say(f"compiling for {arch}")
        built = [
            (f"{CELL}/{kernel.name}/{arch}", kernel) for kernel in toolchain.build(source, arch)
        ]
        chosen = [(cell, kernel) for cell, kernel in built if fnmatchcase(cell, wanted or "*")]
        if not chosen:
            continue
        for plant in toolchain.build(OWN_PLANTS, arch):
            yield examine(plant, toolchain, f"{CELL}/{plant.name}/{arch}", control=plant.name)
        for cell, kernel in chosen:
            yield examine(kernel, toolchain, cell)


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
