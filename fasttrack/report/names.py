"""What a profiler calls a compiled function, as a person would. Pure; read by `layers`, `timeline`.

C++ without its return type, namespaces, arguments of templates and of calls; of CuTe DSL, which
spells module, class and every tensor, the class; everything else as it is. Two functions may get
one name: it is for reading.
"""

from __future__ import annotations

import re

_CUTE = re.compile(r"kernel_cutlass_(?:kernel_)?(?P<path>\w+?)_object_at_")
_CLASS = re.compile(r"[A-Z][A-Za-z0-9]*$")
_WRAPPERS = frozenset({"device_kernel", "Kernel", "Kernel2"})
"""CUTLASS's own: what they run is an argument of the template."""


def short(name: str) -> str:
    """The name, or a part of it."""
    cute = _CUTE.match(name)
    if cute:
        own = _CLASS.search(cute["path"])
        return own[0] if own else cute["path"]
    plain = name.replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", plain, maxsplit=1)[0]
    if head == plain or not head.strip():
        return name
    found = head.split()[-1].rpartition("::")[2]
    if found in _WRAPPERS:
        inner = (one for one in re.findall(r"\w+(?=<)", plain) if re.search("[A-Z]", one))
        found = next((one for one in inner if one not in _WRAPPERS), found)
    return found or name
