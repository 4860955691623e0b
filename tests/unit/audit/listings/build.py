"""Writes the listings beside this script: the harness's planted kernels, compiled and disassembled.

`python tests/unit/audit/listings/build.py`, with FASTTRACK_CUTE_PYTHON naming a Python that has
CuTe DSL. What the reader does not read is left out: debug frames, filler instructions, sizes. The
analyser's tests run from these files wherever there is no compiler; where there is one, a test
compiles the kernels again.
"""

from __future__ import annotations

import re
from pathlib import Path

from fasttrack.audit.toolchain import Toolchain

ARCHS = ("sm_90a", "sm_100a", "sm_103a")
HERE = Path(__file__).resolve().parent
_NEEDED = re.compile(r"^//-+ \.(text|nv\.info)\.\S+\s+-+$")
_SECTION = re.compile(r"^//-+ \.")
_BLOCK = re.compile(r"^\s+//----- nvinfo : (\w+)")
_READ = ("EIATTR_KPARAM_INFO", "EIATTR_PARAM_CBANK")
_MANGLED = re.compile(r"(kernel_cutlass_[a-z_]+?)_(?:tensorptr|CopyAtom)\w*?_(\d+)\b")
_FILLER = re.compile(r"^\s*$|^\s+/\*[0-9a-f]+\*/\s+NOP;|^\s+\.(align|global|type|size|section)")


def reduced(text: str) -> str:
    """A listing without what `fasttrack.audit.listing` does not read, and with shorter names."""
    kept, wanted = [], True
    for line in text.splitlines():
        if _SECTION.match(line):
            wanted = _NEEDED.match(line) is not None
            kept += [line] if wanted and ".nv.info" in line else []
            wanted = wanted and ".nv.info" not in line
        elif block := _BLOCK.match(line):
            wanted = block.group(1) in _READ
        if wanted and not _FILLER.match(line):
            kept.append(line.rstrip())
    return _MANGLED.sub(r"\1_\2", "\n".join(kept)) + "\n"


def main() -> None:
    """Compile for every architecture and write one file each."""
    toolchain = Toolchain()
    for arch in ARCHS:
        cubin = toolchain.build(None, arch).plants[0].cubin
        (HERE / f"{arch}.sass").write_text(reduced(toolchain.disassemble(cubin)))


if __name__ == "__main__":
    main()
