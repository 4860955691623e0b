"""Reads the text that `nvdisasm` prints for a cubin: kernels, instructions, parameters, labels.

Owns the grammar and nothing else; what an instruction does is `machine`'s business. Pure text in,
values out, so it runs where neither a GPU nor CUDA is. A listing that is cut short or of another
layout raises `ListingError`: the caller treats that as unreadable, never as clean.

Sources: "CUDA Binary Utilities" (nvdisasm), and the attribute blocks `nvdisasm` itself prints under
`.nv.info`, which it labels with their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MAX_CHARACTERS = 256 * 2**20
_SECTION = re.compile(r"^//-+ (\.\S+)\s+-+$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(\S.*?)\s*;")
_LABEL = re.compile(r"^(\S+):$")
_ENTRY = re.compile(r"^\s*\.other\s+(\S+),@\"[^\"]*STO_CUDA_ENTRY", re.MULTILINE)
_TARGET = re.compile(r"^\s*\.target\s+(sm_\w+)", re.MULTILINE)
_FLAGS = re.compile(r"\.headerflags\s+@\"([^\"]*)\"")
_BLOCK = re.compile(r"//----- nvinfo : (\w+)")
_DATA = re.compile(r"\.(byte|short|word)\s+(.*)$", re.MULTILINE)
_GUARD = re.compile(r"^@(!?)(U?P[T\d]\w*)\s+")
_BRANCHES = re.compile(r"\(\*\"BRANCH_TARGETS ([^\"]*)\"\*\)")
_REFERENCE = re.compile(r"`\(([^)]+)\)")


class ListingError(ValueError):
    """The text is not a listing this reader understands."""


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    `guard` is the predicate it runs under (empty: always); `operands` are split at top-level
    commas, destination first; `targets` are the labels it names.
    """

    offset: int
    guard: str
    opcode: str
    operands: tuple[str, ...]
    targets: tuple[str, ...]
    text: str

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> frozenset[str]:
        """What follows the opcode's dots."""
        return frozenset(self.opcode.split(".")[1:])

    @property
    def never(self) -> bool:
        """Whether its guard is constantly false: a filler."""
        return self.guard in ("!PT", "!UPT")


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter: position, and its place in the parameter area, in bytes."""

    index: int
    offset: int
    size: int


@dataclass(frozen=True)
class Kernel:
    """One entry function. `bank` is where its parameters start in constant bank 0, in bytes."""

    name: str
    arch: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    """Label to position in `instructions`; a label at the very end has the position past it."""
    parameters: tuple[Parameter, ...]
    bank: int

    def parameter_at(self, offset: int) -> Parameter | None:
        """The parameter that holds a byte of the parameter area."""
        for parameter in self.parameters:
            if parameter.offset <= offset < parameter.offset + parameter.size:
                return parameter
        return None


def read(text: str) -> tuple[Kernel, ...]:
    """All entry functions of a listing (`nvdisasm FILE`, all sections), in file order.

    Raises `ListingError` for anything that is not such a listing, or holds no entry function.
    """
    if len(text) > MAX_CHARACTERS:
        raise ListingError(f"listing of more than {MAX_CHARACTERS} characters")
    sections = {mark.group(1): body for mark, body in _parts(_SECTION, text)}
    arch = _arch(text)
    kernels = []
    for title, body in sections.items():
        name = title.removeprefix(".text.")
        if title == name or name not in _ENTRY.findall(body):
            continue
        instructions, labels = _code(body)
        if not instructions:
            raise ListingError(f"{name} has no instructions")
        parameters, bank = _parameters(sections.get(f".nv.info.{name}", ""), name)
        kernels.append(Kernel(name, arch, instructions, labels, parameters, bank))
    if not kernels:
        raise ListingError("no entry function in the listing")
    return tuple(kernels)


def _parts(heading: re.Pattern[str], text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each heading with the text up to the next one."""
    marks = list(heading.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=False):
        yield mark, text[mark.end() : end]


def _arch(text: str) -> str:
    if found := _TARGET.search(text):
        return found.group(1)
    flags = _FLAGS.search(text)
    version = re.search(r"EF_CUDA_SM(\d+)", flags.group(1)) if flags else None
    if flags is None or version is None:
        raise ListingError("the listing does not name its architecture")
    accelerated = "a" if "EF_CUDA_ACCELERATORS" in flags.group(1) else ""
    return f"sm_{version.group(1)}{accelerated}"


def _code(body: str) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in body.splitlines():
        if label := _LABEL.match(line):
            labels[label.group(1)] = len(instructions)
        elif found := _INSTRUCTION.match(line):
            instructions.append(_instruction(int(found.group(1), 16), found.group(2)))
    return tuple(instructions), labels


def _instruction(offset: int, text: str) -> Instruction:
    text = " ".join(text.strip("{} ").split())
    targets = tuple(_REFERENCE.findall(text))
    if listed := _BRANCHES.search(text):
        targets += tuple(name.strip() for name in listed.group(1).split(","))
    rest = _BRANCHES.sub("", text)
    guard = ""
    if found := _GUARD.match(rest):
        guard, rest = found.group(1) + found.group(2), rest[found.end() :]
    opcode, _, operands = rest.partition(" ")
    return Instruction(offset, guard, opcode, tuple(_split(operands)), targets, text)


def _split(operands: str) -> Iterator[str]:
    """Operands, split at commas outside brackets."""
    depth, start = 0, 0
    for place, character in enumerate(operands):
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth == 0:
            yield operands[start:place].strip()
            start = place + 1
    if last := operands[start:].strip():
        yield last


def _parameters(body: str, name: str) -> tuple[tuple[Parameter, ...], int]:
    """Parameters and their base in constant bank 0, from the kernel's `.nv.info` section."""
    parameters, bank, total = [], None, None
    for mark, block in _parts(_BLOCK, body):
        if mark.group(1) == "EIATTR_KPARAM_INFO":
            values = _values(block, "short", "byte")
            # Four bytes of type and size, the value itself: word index, short ordinal, short
            # offset, then 32 bits whose top 14 hold the size in bytes.
            if len(values["short"]) < 2 or len(values["byte"]) < 6:
                raise ListingError(f"{name}: a parameter's description is cut short")
            ordinal, offset = values["short"][-2:]
            packed = int.from_bytes(bytes(values["byte"][-4:]), "little")
            parameters.append(Parameter(ordinal, offset, packed >> 18))
        elif mark.group(1) == "EIATTR_PARAM_CBANK":
            shorts = _values(block, "short")["short"]
            if len(shorts) < 2:
                raise ListingError(f"{name}: the parameter bank's description is cut short")
            bank, total = shorts[-2:]
    if parameters and (bank is None or total is None):
        raise ListingError(f"{name}: parameters without a place in the constant bank")
    ordered = tuple(sorted(parameters, key=lambda parameter: parameter.index))
    if [parameter.index for parameter in ordered] != list(range(len(ordered))):
        raise ListingError(f"{name}: parameters are not numbered from 0")
    return ordered, bank or 0


def _values(block: str, *kinds: str) -> dict[str, list[int]]:
    """Numbers of a block by directive; expressions between labels are left out."""
    found: dict[str, list[int]] = {kind: [] for kind in kinds}
    for kind, values in _DATA.findall(block):
        if kind in found:
            numbers = [part.strip() for part in values.split(",")]
            found[kind] += [int(part, 16) for part in numbers if part.startswith("0x")]
    return found
