"""Which compiled code a process runs, from the operating system: no optimization is asked.

Read by the engine children and by the child of the kernel referee, so that a case and the engine
can be shown to run the same machine code. Python code and what a GPU runs are not seen here.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path

MAPS = Path("/proc/self/maps")
SYSTEM = ("/usr/", "/lib/", "/lib64/", "/nix/")
LONGEST = 80


def mapped(package: str | None = None) -> dict[str, str]:
    """Name by SHA-256 of every file mapped as code; empty where the system does not tell.

    Files of the interpreter, of the system and of installed packages are left out, but for those of
    `package`.
    """
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    paths = set()
    for line in lines:
        fields = line.split(None, 5)
        if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/"):
            paths.add(fields[5])
    found = {}
    for path in sorted(paths):
        if _known(path, package):
            continue
        try:
            digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError:
            continue  # removed since; its code cannot be compared
        found[digest] = Path(path).name[-LONGEST:]
    return found


def _known(path: str, package: str | None) -> bool:
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if package and any(path.startswith(f"{folder}/{package}/") for folder in libraries):
        return False
    return path.startswith((*SYSTEM, f"{sys.prefix}/", f"{sys.base_prefix}/", *libraries))
