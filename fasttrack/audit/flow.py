"""Which instructions run before the grid-dependency wait, and what their addresses derive from.

Owns the walk over a kernel's control flow. It starts at the entry, follows every edge and ends at
an unguarded wait, so what it visits is what some path runs before it has waited; loops and joins
are walked until no register gains an origin. Conditions are not evaluated: a path that no thread
takes counts as one. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fasttrack.audit import machine
from fasttrack.audit.listing import Instruction, Kernel
from fasttrack.audit.values import State, Value, Values, grow

MAX_RUNS = 100_000
"""Straight runs followed before the walk gives up; our largest kernels need a few hundred."""


@dataclass(frozen=True)
class Touch:
    """One access to global memory that some path makes before the wait."""

    instruction: Instruction
    access: machine.Access
    origins: Value


@dataclass
class Trace:
    """What the walk found."""

    touches: list[Touch] = field(default_factory=list)
    """By offset."""
    waits: list[int] = field(default_factory=list)
    """Offsets of unguarded waits at which paths end."""
    guarded_waits: list[int] = field(default_factory=list)
    """Offsets of waits under a predicate: they do not end a path."""
    launches: list[int] = field(default_factory=list)
    """Offsets of launch_dependents that some path runs before the wait."""
    exits_early: bool = False
    """Whether some path may end without having waited."""
    problems: list[str] = field(default_factory=list)
    """What could not be followed: nothing may be concluded from the rest."""


def trace(kernel: Kernel) -> Trace:
    """Walk a kernel from its entry to its waits."""
    walk = _Walk(kernel)
    walk.settle()
    return walk.report()


class _Walk:
    """Register states at the heads of straight runs of instructions."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._code = kernel.instructions
        self._values = Values(kernel)
        self._places = {found.offset: place for place, found in enumerate(self._code)}
        self._returns = [
            place + 1 for place, found in enumerate(self._code) if found.base == "CALL"
        ]
        self._heads = {*kernel.labels.values(), *self._returns}
        self._states: dict[int, State] = {0: {}}
        self._problems: dict[str, None] = {}

    def settle(self) -> None:
        """Run until every state holds every value that can reach it."""
        pending = [0]
        for _ in range(MAX_RUNS):
            if not pending:
                return
            for _, _, edges, after in self._run(pending.pop()):
                for place in edges:
                    if place >= len(self._code):
                        self._problems["control runs past the last instruction"] = None
                    elif place not in self._states:
                        self._states[place] = dict(after)
                        pending.append(place)
                    elif grow(self._states[place], after):
                        pending.append(place)
        self._problems[f"no fixed point after {MAX_RUNS} runs"] = None

    def report(self) -> Trace:
        """Everything seen on the way, once the states are final."""
        found = Trace()
        touches: dict[int, Touch] = {}
        waits: set[int] = set()
        guarded: set[int] = set()
        launches: set[int] = set()
        for head in list(self._states):
            for instruction, before, _, _ in self._run(head):
                if instruction.base == machine.WAIT:
                    (guarded if instruction.guard else waits).add(instruction.offset)
                elif instruction.base == machine.LAUNCH:
                    launches.add(instruction.offset)
                elif instruction.base == "EXIT":
                    found.exits_early = True
                access = machine.access(instruction)
                if access is None or instruction.never:
                    continue
                origins = self._values.address(instruction, before)
                if earlier := touches.get(instruction.offset):
                    origins |= earlier.origins
                touches[instruction.offset] = Touch(instruction, access, origins)
        found.touches = [touches[offset] for offset in sorted(touches)]
        found.waits, found.guarded_waits = sorted(waits), sorted(guarded)
        found.launches, found.problems = sorted(launches), list(self._problems)
        return found

    def _run(self, head: int) -> Iterator[tuple[Instruction, State, list[int], State]]:
        """A straight run from a head: instruction, state before, where else it leads, state after.

        The states are the run's own and change as it goes on.
        """
        before = dict(self._states[head])
        place = head
        while place < len(self._code):
            instruction = self._code[place]
            after = dict(before)
            if instruction.base == machine.WAIT and not instruction.guard:
                yield instruction, before, [], after
                return
            onward, edges = self._leads_to(instruction, before)
            self._values.apply(instruction, after)
            place += 1
            ends = not onward or place in self._heads or place >= len(self._code)
            yield instruction, before, [*edges, place] if onward and ends else edges, after
            if ends:
                return
            before = after

    def _leads_to(self, instruction: Instruction, state: State) -> tuple[bool, list[int]]:
        """Whether control may go on to the next instruction, and where it may jump."""
        base, guarded = instruction.base, bool(instruction.guard)
        if instruction.never:
            return True, []
        if base in ("EXIT", "KILL"):
            return guarded, []
        if base == "RET":
            # Whichever call it answers: return addresses are not followed.
            return guarded, self._returns
        if base == "BSYNC":
            barrier = self._values.barrier(instruction, state)
            return True, [origin.at for origin in barrier if origin.kind == "label"]
        if base not in machine.JUMPS or (base == "WARPSYNC" and not instruction.targets):
            return True, []
        jumps = [self._kernel.labels.get(name, -1) for name in instruction.targets]
        if not jumps or -1 in jumps:
            self._problems[f"unknown target: {instruction.text}"] = None
        # A further operand is a condition (BRA.U UP0, BRA.DIV); WARPSYNC may fall through.
        conditional = base == "WARPSYNC" or (
            base in ("BRA", "JMP") and len(instruction.operands) > 1
        )
        return guarded or conditional, [place for place in jumps if place >= 0]
