"""What an optimization says about the kernels it compiles, so that their machine code is audited.

`[plugin] compiled_kernels = "module:function"` in claim.toml (or the entry-point group
`fasttrack.compiled_kernels`) names a function that returns a sequence of `CompiledKernel`. It runs
in a child process under a Python that has the compiler, without torch unless it imports torch
itself. Imports nothing, so that this Python needs no package of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

GROUP = "fasttrack.compiled_kernels"


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel of the optimization, at one set of compile-time constants."""

    name: str
    """Unique among the optimization's kernels: letters, digits, `._-`."""
    archs: tuple[str, ...]
    """What it is compiled for, e.g. ``("sm_90a", "sm_103a")``."""
    compile: Callable[[str], bytes]
    """Architecture to cubin. With CuTe DSL: ``cute.compile(...).artifacts.CUBIN``; the caller has
    set the compiler's environment for that architecture."""
    parameters: tuple[str, ...] = ()
    """Names of the kernel's parameters in order, or () to call them 0, 1, ... A compiler may drop
    a parameter that holds nothing at run time: `fasttrack audit FILE.cubin` lists what is left."""
    static: tuple[str, ...] = ()
    """Parameters whose memory nothing writes during a step: weights, tables. They may be read
    before the wait. For a TMA descriptor: the tensor it describes."""
    own: tuple[str, ...] = ()
    """Parameters whose memory no other kernel of the step touches, or whose order is kept by
    something else than the wait, such as a mailbox with flags. Read and written at any time."""
    dependent: bool = True
    """Whether it is launched with programmatic stream serialization, so before the kernel ahead of
    it has ended. False: launched in stream order, and nothing is asked of it."""
    entry: str = ""
    """Part of the function's name in the cubin, where the cubin holds several."""
