"""Where register values come from: a small dataflow over sets of origins.

Owns the meaning of instructions for addresses: constant-bank reads, moves and integer arithmetic,
in both register files. A value is the set of everything it was computed from. Reads no control flow
and judges nothing: an origin is a fact, whether it is allowed is a rule's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fasttrack.audit import machine
from fasttrack.audit.listing import Instruction, Kernel

Register = tuple[str, int]
Value = frozenset["Origin"]
State = dict[Register, Value]
NOTHING: Value = frozenset()
"""A constant, a thread or block index, or a register nobody has written."""

# Where constant bank 0 holds the generic address of the parameter area, by where that area starts
# in the bank: compute capability 9.0, and 10.x. TMA descriptors passed by value are reached so.
# Read off listings of kernels whose only TMA descriptor is a known parameter.
WINDOW = {0x210: 0x198, 0x380: 0x348}
SOMEWHERE = -1
_CONSTANT = re.compile(r"(cx?)\[([^\]]*)\]\[([^\]]*)\]")
_REGISTER = re.compile(r"\b(U?R|B)(\d+)\b((?:\.\w+)*)")
_NUMBER = re.compile(r"^-?0x[0-9a-f]+$|^-?\d+$")
_ZERO = re.compile(r"^-?(U?RZ|0x0)(\.\w+)*$")


@dataclass(frozen=True, slots=True)
class Origin:
    """One thing a value was computed from.

    - `parameter`: a kernel parameter; `at` is an offset in the parameter area, in bytes
    - `window`: the generic address of the parameter area, plus `at` bytes (-1: plus anything)
    - `window_high`: the upper half of such an address
    - `memory`: read from memory, `at` bits at once
    - `label`: a point of convergence, at position `at`
    - `unknown`: made by the instruction at offset `at`, in a way that is not modelled
    """

    kind: Literal["parameter", "window", "window_high", "memory", "label", "unknown"]
    at: int


class Values:
    """Reads and writes the registers of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def apply(self, instruction: Instruction, state: State) -> None:
        """Change `state` as the instruction does."""
        if instruction.never:
            return
        if instruction.base == "BSSY":
            places = [self._kernel.labels[name] for name in instruction.targets
                      if name in self._kernel.labels]  # fmt: skip
            for register in _registers(instruction.operands[0], 1):
                state[register] = frozenset(Origin("label", place) for place in places)
            return
        sure, maybe = machine.results(instruction)
        unknown = frozenset({Origin("unknown", instruction.offset)})
        values = self._made(instruction, state, len(sure))
        for register, value in zip(sure, values, strict=True):
            state[register] = state.get(register, NOTHING) | value if instruction.guard else value
        for register in maybe:
            state[register] = state.get(register, NOTHING) | unknown

    def address(self, instruction: Instruction, state: State) -> Value:
        """Everything the global address of an access derives from."""
        inside = machine.address(instruction)
        found = _REGISTER.findall(inside)
        value = NOTHING
        for bank, number, suffix in found:
            # A vector register without `.64` beside a uniform pair is a 32-bit index.
            words = 1 if bank == "R" and ".64" not in suffix and len(found) > 1 else 2
            for word in range(words):
                value |= state.get((bank, int(number) + word), NOTHING)
        terms = [term for term in re.split(r"[+]", inside) if _NUMBER.match(term)]
        shift = sum(int(term, 0) for term in terms)
        return _moved(value, shift if len(found) == 1 else None)

    def barrier(self, instruction: Instruction, state: State) -> Value:
        """What the convergence barrier of a BSYNC holds."""
        return self._read(instruction.operands[0], state, instruction)

    def _made(self, instruction: Instruction, state: State, words: int) -> list[Value]:
        """Values of the `words` registers an instruction surely writes, lowest first."""
        base = instruction.base
        if base in machine.FROM_MEMORY:
            return [frozenset({Origin("memory", 32 * words)})] * words
        if base not in machine.MODELLED:
            return [frozenset({Origin("unknown", instruction.offset)})] * words
        sources = _sources(instruction)

        def read(operand: str, word: int = 0) -> Value:
            return self._read(operand, state, instruction, word)

        if base in machine.FROM_CONSTANT:
            return [read(sources[0], word) if sources else NOTHING for word in range(words)]
        if base in ("IMAD", "UIMAD") and len(sources) >= 3:
            # a * b + c; with WIDE the third operand and the result have 64 bits.
            product = any(_ZERO.match(factor) for factor in sources[:2])
            factors = NOTHING if product else read(sources[0]) | read(sources[1])
            added = [read(sources[2], word) for word in range(words)]
            return added if product else [_moved(factors | value, None) for value in added]
        whole = [
            frozenset[Origin]().union(*(read(operand, word) for operand in sources))
            for word in range(words)
        ]
        if base in machine.MOVES:
            return whole
        if base in machine.ADDS:
            return [_moved(value, _added(sources)) for value in whole]
        if words > 1:
            whole = [whole[0] | value for value in whole]
        return [_moved(value, None) for value in whole]

    def _read(self, operand: str, state: State, instruction: Instruction, word: int = 0) -> Value:
        """The value of one source operand, or of the word after it."""
        if constant := _CONSTANT.search(operand):
            form, bank, offset = constant.groups()
            return self._constant(form, bank, offset, instruction, word)
        value = NOTHING
        for bank, number in _registers(operand, 0):
            value |= state.get((bank, number + word), NOTHING)
        return value

    def _constant(
        self, form: str, bank: str, offset: str, instruction: Instruction, word: int
    ) -> Value:
        """A word of a constant bank. Only bank 0, at a fixed place, can be told."""
        if form != "c" or bank != "0x0" or not _NUMBER.match(offset):
            return frozenset({Origin("unknown", instruction.offset)})
        at = int(offset, 0) + 4 * word
        window = WINDOW.get(self._kernel.bank)
        if window is not None and at in (window, window + 4):
            return frozenset({Origin("window", 0) if at == window else Origin("window_high", 0)})
        inside = at - self._kernel.bank
        # The rest of bank 0 is set by the driver: launch shape, stack, memory descriptor.
        known = inside >= 0 and self._kernel.parameter_at(inside) is not None
        return frozenset({Origin("parameter", inside)}) if known else NOTHING


def grow(state: State, more: State) -> bool:
    """Add every value of `more` to `state`; says whether anything was new."""
    changed = False
    for register, value in more.items():
        before = state.get(register)
        if before is None or not value <= before:
            state[register] = value if before is None else before | value
            changed = True
    return changed


def _registers(operand: str, limit: int) -> list[Register]:
    """The registers an operand names; at most `limit` of them if that is not 0."""
    found = [(bank, int(number)) for bank, number, _ in _REGISTER.findall(operand)]
    return found[:limit] if limit else found


def _sources(instruction: Instruction) -> list[str]:
    """The operands after the destination, without predicates."""
    operands = list(instruction.operands)
    while operands and machine.is_predicate(operands[0]):
        operands.pop(0)
    return [operand for operand in operands[1:] if not machine.is_predicate(operand)]


def _added(sources: list[str]) -> int | None:
    """The constant an addition adds to its one register; None when it adds anything else."""
    registers = [operand for operand in sources if not _ZERO.match(operand)]
    numbers = [operand for operand in registers if _NUMBER.match(operand)]
    others = [operand for operand in registers if operand not in numbers]
    if len(others) > 1 or any(operand.startswith(("-", "~")) for operand in others):
        return None
    return sum(int(number, 0) for number in numbers)


def _moved(value: Value, shift: int | None) -> Value:
    """A value after adding a constant, or (None) after arithmetic nobody follows."""
    if not any(origin.kind == "window" for origin in value):
        return value
    return frozenset(
        Origin("window", SOMEWHERE if shift is None or origin.at < 0 else origin.at + shift)
        if origin.kind == "window"
        else origin
        for origin in value
    )
