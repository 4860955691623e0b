"""What machine instructions do, as far as the audit asks: registers written, memory touched.

Owns the tables over opcodes of compute capability 9.0 and 10.x. Whatever is not in a table is
assumed to be harmful: an unknown opcode with a memory operand is an unknown access, and one that
writes a register leaves an unknown value there. Sources: the instruction-set tables of "CUDA Binary
Utilities"; widths and operand order were read off listings of our own kernels.
"""

from __future__ import annotations

import re
from typing import Literal

from fasttrack.audit.listing import Instruction

Access = Literal["load", "store", "atomic", "unknown"]

WAIT = "ACQBULK"
"""The grid-dependency wait: PTX `griddepcontrol.wait`."""
LAUNCH = "PREEXIT"
"""PTX `griddepcontrol.launch_dependents`."""

_PREDICATE = re.compile(r"^!?U?P[T\d]\w*$")
_PLAIN = re.compile(r"^(U?R|B)(Z|\d+)(\.\w+)*$")
_BRACKET = re.compile(r"(\w*)\[([^\]]*)\]")
_CONSTANT = re.compile(r"\bcx?\[[^\]]*\]\[[^\]]*\]")

_LOADS = frozenset({"LD", "LDG", "LDGMC", "LDGSTS", "UTMALDG"})
_STORES = frozenset({"ST", "STG", "RED", "REDG", "REDGMC", "UBLKRED", "UTMASTG", "UTMAREDG"})
_ATOMICS = frozenset({"ATOM", "ATOMG"})
# Texture and surface units address memory without a bracket.
_UNKNOWN = frozenset(
    {"TEX", "TLD", "TLD4", "TMML", "TXD", "SULD", "SUST", "SURED", "SUATOM", "TTUCCTL"}
)
# Shared, local, tensor and constant memory, barriers, and prefetches, which bring a line to the
# L2 cache, where every write lands: they hand no value to the program.
_HARMLESS = frozenset(
    {
        *("LDS", "STS", "ATOMS", "LDSM", "STSM", "LDL", "STL", "LDTM", "STTM", "UTCCP", "STAS"),
        *("LDC", "LDCU", "ULDC", "SYNCS", "REDAS", "UTCBAR", "UTCATOMSWS", "UTCSHIFT"),
        *("UTMACCTL", "UTMAPF", "UBLKPF", "CCTL", "CCTLL", "UCCTL", "CCTLT", "QSPC"),
        *("UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA", "UTCMXQMMA", "HGMMA", "IGMMA", "QGMMA"),
        *("BGMMA", "UCGABAR_ARV", "UCGABAR_WAIT", "UCGABAR_GET", "ERRBAR", "ARRIVES"),
    }
)
_NO_RESULT = frozenset(
    {
        *("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "CALL", "RET", "EXIT", "BSYNC", "BREAK"),
        *("WARPSYNC", "NOP", "YIELD", "NANOSLEEP", "BAR", "MEMBAR", "FENCE", "DEPBAR", "ERRBAR"),
        *("LDGDEPBAR", "LDGSTS", "UTMALDG", "UTMACMDFLUSH", "UTMACCTL", "UBLKCP", "BPT", "KILL"),
        *("STG", "STS", "STL", "ST", "STSM", "STAS", "STTM", "RED", "REDG", "CCTL", "R2P"),
        *("ISETP", "UISETP", "FSETP", "DSETP", "HSETP2", "PLOP3", "UPLOP3", "PREEXIT", "ACQBULK"),
        *("ARRIVES", "CGAERRBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "USETMAXREG", "BMOV"),
    }
)
_ONE = frozenset(
    {
        *("MOV", "UMOV", "R2UR", "S2R", "S2UR", "IMAD", "UIMAD", "IADD3", "UIADD3", "IADD"),
        *("VIADD", "UVIADD", "LEA", "ULEA", "SHF", "USHF", "LOP3", "ULOP3", "PRMT", "UPRMT"),
        *("SEL", "USEL", "IMNMX", "UIMNMX", "VIMNMX", "UVIMNMX", "VIMNMX3", "UVIMNMX3", "IABS"),
        *("VIADDMNMX", "UVIADDMNMX"),
        *("SGXT", "USGXT", "BMSK", "UBMSK", "POPC", "UPOPC", "FLO", "UFLO", "BREV", "UBREV"),
        *("SHFL", "VOTE", "VOTEU", "MATCH", "REDUX", "CREDUX", "ELECT", "P2R", "UP2UR"),
        *("FADD", "FMUL", "FFMA", "FMNMX", "FMNMX3", "FSEL", "FSET", "FSWZADD", "FCHK", "MUFU"),
        *("HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSET2", "F2F", "F2FP", "F2I", "I2F"),
        *("I2FP", "I2I", "I2IP", "FRND", "IDP", "IDP4A", "LDS", "LDG", "LD", "LDL", "LDC", "LDCU"),
        *("ULDC", "ATOMG", "ATOM", "ATOMS", "SYNCS", "LDSM", "CS2R", "CS2UR", "UF2F", "UI2F"),
        *("LDGMC", "MOVM", "B2R", "UFADD", "UFMUL", "UFFMA", "UI2FP", "UF2FP", "UFSEL", "UF2I"),
        *("NANOTRAP", "BMOV", "QSPC", "MAPA", "UMAPA", "UGETNEXTWORKID"),
    }
)
_PAIR = frozenset({"DADD", "DMUL", "DFMA", "DMNMX", "FADD2", "FMUL2", "FFMA2", "CS2R"})
_QUAD = frozenset({"HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "BMMA"})
_SHIFTS = frozenset({"SHF", "USHF", "LEA", "ULEA", "IADD3", "UIADD3", "ISETP", "PRMT"})
WIDE_UNKNOWN = 128
"""Registers a warpgroup matrix instruction or a tensor-memory load may write."""

JUMPS = frozenset({"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "CALL", "WARPSYNC"})
"""Instructions that may go elsewhere; `flow` knows EXIT, RET and BSYNC by themselves."""
FROM_MEMORY = frozenset(
    {"LDG", "LD", "LDGMC", "LDS", "LDL", "LDSM", "LDTM", "ATOMG", "ATOM", "ATOMS"}
)
"""Instructions whose result comes from memory and not from their operands."""
FROM_CONSTANT = frozenset({"LDC", "LDCU", "ULDC"})
MODELLED = (_ONE | _PAIR) - FROM_MEMORY
"""Instructions whose result derives from their operands alone."""
MOVES = frozenset({"MOV", "UMOV", "R2UR", "SHFL"})
ADDS = frozenset({"IADD3", "UIADD3", "VIADD", "UVIADD", "IADD"})


def is_predicate(operand: str) -> bool:
    """Whether an operand is a predicate register."""
    return _PREDICATE.match(operand) is not None


def access(instruction: Instruction) -> Access | None:
    """How the instruction touches global memory, or may touch it; None when it does not."""
    base = instruction.base
    if base == "UBLKCP":
        return _bulk_copy(instruction)
    if base in _LOADS:
        return "load"
    if base in _STORES:
        return "store"
    if base in _ATOMICS:
        return "atomic"
    if base in _UNKNOWN:
        return "unknown"
    return "unknown" if base not in _HARMLESS and _brackets(instruction) else None


def _bulk_copy(instruction: Instruction) -> Access | None:
    """`.S.G` copies from global to shared memory, `.G.S` back; `.S.S` stays on the chip."""
    spaces = tuple(part for part in instruction.opcode.split(".")[1:] if part in ("S", "G"))
    known: dict[tuple[str, ...], Access | None] = {
        ("S", "G"): "load",
        ("G", "S"): "store",
        ("S", "S"): None,
    }
    return known.get(spaces, "unknown")


def _brackets(instruction: Instruction) -> list[str]:
    """The insides of memory brackets, without those of constants and of descriptors."""
    text = _CONSTANT.sub("", " ".join(instruction.operands))
    return [inside for name, inside in _BRACKET.findall(text) if name == ""]


def address(instruction: Instruction) -> str:
    """The inside of the brackets that address global memory; empty where there are none."""
    inside = _brackets(instruction)
    # These write shared memory, which is named first, from global memory.
    copies = instruction.base in ("LDGSTS", "UTMALDG") or (
        instruction.base == "UBLKCP" and access(instruction) == "load"
    )
    place = 1 if copies else 0
    return inside[place] if len(inside) > place else ""


def results(instruction: Instruction) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Register names the instruction surely writes, and those it may write.

    Each entry is a bank (`R`, `UR` or `B`) and a number; the zero registers are left out.
    """
    base = instruction.base
    if base in _NO_RESULT and base != "BMOV":
        return [], []
    sure: list[tuple[str, int]] = []
    maybe: list[tuple[str, int]] = []
    for operand in instruction.operands:
        if is_predicate(operand):
            continue
        plain = _PLAIN.match(operand)
        if plain is None:
            break
        if plain.group(2) != "Z":
            certain, possible = _width(instruction)
            number = int(plain.group(2))
            sure += [(plain.group(1), number + place) for place in range(certain)]
            maybe += [(plain.group(1), number + place) for place in range(certain, possible)]
        # `LDG.E.ENL2.256 R8, R4, desc[...]` writes two groups of registers.
        if "ENL2" not in instruction.modifiers:
            break
    return sure, maybe


def _width(instruction: Instruction) -> tuple[int, int]:
    """Registers written from the first on: surely, and at most."""
    base, modifiers = instruction.base, instruction.modifiers
    if base in _QUAD:
        return 2, 4
    if base.endswith("GMMA") or base == "LDTM":
        return 1, WIDE_UNKNOWN
    if base not in _ONE and base not in _PAIR:
        return 1, 4
    if base == "LDSM":
        return next((int(m) for m in ("4", "2") if m in modifiers), 1), 4
    for bits, count in (("256", 8), ("128", 4), ("96", 3)):
        if bits in modifiers:
            # ENL2 splits its 256 bits between two groups.
            return (4, 8) if "ENL2" in modifiers else (count, count)
    if base == "CS2R":
        return (1, 1) if "32" in modifiers else (2, 2)
    if base in _PAIR or "WIDE" in modifiers or "64" in modifiers:
        return 2, 2
    if base not in _SHIFTS and {"U64", "S64", "F64"} & modifiers:
        return 2, 2
    return 1, 1
