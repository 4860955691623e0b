"""From a listing to facts: the `CompiledRecord` of one kernel. Judges nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from fasttrack.audit.flow import Touch, trace
from fasttrack.audit.listing import Kernel, ListingError, read
from fasttrack.audit.toolchain import Built, Toolchain
from fasttrack.audit.values import Value
from fasttrack.errors import RunError
from fasttrack.schema import CompiledRecord, EarlyAccess

POINTER_BYTES = 8
WIDE_BITS = 64
MAX_GROUPS = 500


def examine(
    built: Built, toolchain: Toolchain, cell: str, control: str | None = None
) -> CompiledRecord:
    """Disassemble and follow one kernel; what cannot be followed is `unreadable`.

    Raises `EnvironmentUnmet` ENV-007 without a disassembler.
    """
    about: dict[str, Any] = {
        "cell": cell,
        "kernel": built.name,
        "arch": built.arch,
        "control": control,
        "dependent": built.dependent,
        "tool": toolchain.tool,
    }
    if built.error:
        return CompiledRecord(status="raised", message=built.error, **about)
    about["cubin_sha256"] = hashlib.sha256(built.cubin).hexdigest()
    try:
        kernels = read(toolchain.disassemble(built.cubin))
        about |= {"functions": [each.name for each in kernels], "tool": toolchain.tool}
        facts = facts_of(_chosen(kernels, built.entry), built.parameters, built.static, built.own)
    except (ListingError, RunError) as error:
        return CompiledRecord(status="unreadable", message=str(error)[:2000], **about)
    return CompiledRecord(**facts, **about)


def facts_of(
    kernel: Kernel,
    parameters: tuple[str, ...] = (),
    static: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Fields of a `CompiledRecord` that follow from the kernel and the names of its parameters.

    Raises `ListingError` when the names do not fit the kernel.
    """
    names = _names(kernel, parameters)
    found = trace(kernel)
    early = early_accesses(kernel, found.touches)
    problems = found.problems + (["too many kinds of access"] if len(early) > MAX_GROUPS else [])
    return {
        "status": "unreadable" if problems else "ok",
        "function": kernel.name,
        "parameters": names,
        "static": _places(static, names),
        "own": _places(own, names),
        "instructions": len(kernel.instructions),
        "waits": found.waits,
        "guarded_waits": found.guarded_waits,
        "launches": found.launches,
        "early": early[:MAX_GROUPS],
        "message": "; ".join(problems)[:2000],
    }


def early_accesses(kernel: Kernel, touches: Sequence[Touch]) -> list[EarlyAccess]:
    """Accesses before the wait, those of one kind and origin in one entry, by first offset."""
    groups: dict[tuple[Any, ...], list[Touch]] = {}
    for touch in touches:
        parameters, unresolved = origin(kernel, touch.origins)
        groups.setdefault((touch.access, parameters, unresolved), []).append(touch)
    return [
        EarlyAccess(
            access=access,
            parameters=parameters,
            unresolved=unresolved,
            offsets=[touch.instruction.offset for touch in group],
            first=group[0].instruction.text,
        )
        for (access, parameters, unresolved), group in groups.items()
    ]


def origin(kernel: Kernel, value: Value) -> tuple[tuple[int, ...], str]:
    """The pointer parameters an address derives from, and why they may not be all.

    A parameter or a value read from memory that has fewer than 64 bits holds no pointer: it is an
    index and says nothing about where the access goes.
    """
    found, reasons = set(), set()
    for source in value:
        if source.kind in ("parameter", "window"):
            parameter = kernel.parameter_at(source.at) if source.at >= 0 else None
            if parameter is None:
                reasons.add("somewhere in the parameter area")
            elif source.kind == "window" or parameter.size >= POINTER_BYTES:
                found.add(parameter.index)
        elif source.kind == "memory" and source.at >= WIDE_BITS:
            reasons.add("a pointer read from memory")
        elif source.kind in ("unknown", "label"):
            reasons.add(f"the value made at {source.at:#x}")
    if not found and not reasons:
        reasons.add("no kernel parameter")
    return tuple(sorted(found)), " and ".join(sorted(reasons))


def _chosen(kernels: Sequence[Kernel], entry: str) -> Kernel:
    fitting = [kernel for kernel in kernels if entry in kernel.name]
    if len(fitting) != 1:
        names = ", ".join(kernel.name for kernel in kernels)
        raise ListingError(f"{len(fitting)} of the cubin's kernels fit {entry!r}: {names}")
    return fitting[0]


def _names(kernel: Kernel, declared: tuple[str, ...]) -> tuple[str, ...]:
    count = len(kernel.parameters)
    if declared and len(declared) != count:
        raise ListingError(
            f"the cubin has {count} parameters, the declaration names {len(declared)}"
        )
    return declared or tuple(map(str, range(count)))


def _places(wanted: tuple[str, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise ListingError(f"no parameter {unknown[0]!r}; there is {', '.join(names) or 'none'}")
    return tuple(sorted(names.index(name) for name in wanted))
