"""`fasttrack audit`: does compiled code read the step's data only behind the wait?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fasttrack.audit import stage
from fasttrack.audit.facts import facts_of
from fasttrack.audit.listing import ListingError, read
from fasttrack.audit.toolchain import PYTHON, Source, Toolchain
from fasttrack.claim import load
from fasttrack.cli.common import JsonOption, emit, talk
from fasttrack.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, UsageError
from fasttrack.rules import hoist
from fasttrack.schema import CompiledRecord, State
from fasttrack.schema.verdict import BAD, GOOD

LISTINGS = (".sass", ".txt")


def audit(
    path: Annotated[
        Path, typer.Argument(help="An optimization's folder, a .cubin, or nvdisasm's text (.sass).")
    ],
    arch: Annotated[
        str | None, typer.Option(help="Of a folder's kernels, only those for this architecture.")
    ] = None,
    kernel: Annotated[str, typer.Option(help="Glob over kernel names.")] = "*",
    static: Annotated[
        list[str] | None,
        typer.Option(help="Of a file: a parameter (0, 1, ...) that nothing writes in a step."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(help="Of a file: a parameter whose memory no other kernel touches."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(help=f"Python with CuTe DSL. Default: ${PYTHON}, or this one.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Follow compiled kernels from their entry to the grid-dependency wait; needs no GPU."""
    toolchain = Toolchain(python=python) if python else Toolchain()
    whole = path.is_dir() or path.name == "claim.toml"
    if whole:
        records = list(_of_claim(path, toolchain, kernel, arch))
    else:
        records = list(_of_file(path, toolchain, kernel, tuple(static or ()), tuple(own or ())))
    if not records:
        raise UsageError("USE-001", f"{path} holds no such kernel", next_step="fasttrack audit -h")
    judge = hoist.finding_among if whole else lambda record, _: hoist.finding(record)
    shown = [(each, *judge(each, records)) for each in records if each.control is None]
    if as_json:
        emit([_json(*each) for each in shown], as_json=True)
    else:
        emit("\n".join(_text(*each) for each in shown), as_json=False)
    states = {state for _, state, _, _ in shown}
    if states <= GOOD:
        return EXIT_PASS
    return EXIT_FAIL if states & BAD else EXIT_INCONCLUSIVE


def _of_claim(
    folder: Path, toolchain: Toolchain, kernel: str, arch: str | None
) -> Iterator[CompiledRecord]:
    frozen = load(folder)
    plugin = frozen.claim.plugin
    if plugin.compiled_kernels is None:
        yield stage.undeclared(frozen.folder.resolve())
        return
    source = Source(plugin.distribution, plugin.compiled_kernels, frozen.folder)
    yield from stage.audit(
        source,
        toolchain,
        f"{stage.CELL}/{kernel}/{arch or '*'}",
        lambda text: talk().print(text, markup=False),
        arch or stage.FIRST_ARCH,
    )


def _of_file(
    path: Path, toolchain: Toolchain, wanted: str, static: tuple[str, ...], own: tuple[str, ...]
) -> Iterator[CompiledRecord]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError("USE-001", f"cannot read {path}: {error.strerror}") from error
    try:
        listed = path.suffix in LISTINGS
        text = content.decode("utf-8", "replace") if listed else toolchain.disassemble(content)
        digest = "" if listed else hashlib.sha256(content).hexdigest()
        for kernel in read(text):
            if Path(kernel.name).match(wanted):
                yield CompiledRecord(
                    cell=kernel.name, kernel=kernel.name, arch=kernel.arch,
                    cubin_sha256=digest, functions=(kernel.name,), tool=toolchain.tool,
                    **facts_of(kernel, (), static, own),
                )  # fmt: skip
    except ListingError as error:
        raise UsageError(
            "USE-001", f"{path}: {error}", next_step="fasttrack audit --help"
        ) from error


def _json(record: CompiledRecord, state: State, reason: str, detail: str) -> dict[str, Any]:
    return {"state": state.value, "reason": reason, "detail": detail, **record.json_value()}


def _text(record: CompiledRecord, state: State, reason: str, detail: str) -> str:
    lines = [f"{state.value} {reason} {record.cell}", f"    {detail}"]
    if record.parameters:
        marks = {**dict.fromkeys(record.static, "*"), **dict.fromkeys(record.own, "+")}
        names = [f"{name}{marks.get(at, '')}" for at, name in enumerate(record.parameters)]
        lines.append(f"    parameters (* static, + own): {' '.join(names)}")
    for access in record.early:
        names_ = ", ".join(record.parameters[at] for at in access.parameters)
        offsets = " ".join(f"{offset:#x}" for offset in access.offsets[:8])
        verdict = "allowed" if hoist.allowed(access, record) else "not allowed"
        whence = " and ".join(filter(None, (names_, access.unresolved)))
        lines.append(f"    before the wait, {verdict}: {access.access} from {whence}: {offsets}")
    return "\n".join(lines)
