"""Where compiled kernels are kept between processes, and what their code depends on.

Owns: the folder, the digests that go into a file's name. Does not own: what is kept there
(`compiler` on CPUs, `stored` on GPUs). Needs the standard library only.

A file is found by a digest of everything it depends on, so a warm start reads files only and a
stale one cannot be picked up by mistake. The files are machine code: keep the folder as private as
the interpreter's own packages (it is created that way).
"""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from pathlib import Path

VARIABLE = "KIMI_K3_CACHE"


def folder() -> Path:
    """`$KIMI_K3_CACHE`, else `kimi_k3` in the user's cache folder. It need not exist."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kimi_k3"


@cache
def source() -> str:
    """Digest of the kernels' source, but for the files that only find compiled ones."""
    found = hashlib.sha256()
    here = Path(__file__).parent
    finders = {here / name for name in ("cache.py", "compiler.py", "stored.py")}
    for path in sorted(set(here.rglob("*.py")) - finders):
        found.update(str(path.relative_to(here)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


@cache
def processor() -> str:
    """Architecture and features of this machine's processor."""
    found = f"{platform.machine()} {platform.processor()}"
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines():
            if line.startswith(("model name", "flags", "Features", "CPU part")):
                found += line
    except OSError:
        pass  # elsewhere the processor's name has to do
    return found
