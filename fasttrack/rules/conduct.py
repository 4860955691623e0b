"""What a candidate must not do beside being wrong: exact checks of one cell's conduct.

Owns the list of checks a `ConductRecord` must hold, with the reason each failure has. Pure; read by
`numerics`, which makes one verdict per cell of both.
"""

from __future__ import annotations

from fasttrack.schema import Check, ConductRecord, State

CHECKS = {
    "inputs_changed": "NUM-MUTATED",
    "guards_changed": "NUM-GUARD",
    "guards_of_outputs": "NUM-GUARD",
    "unwritten": "NUM-UNWRITTEN",
    "late_writes": "NUM-LATE",
    "stale_answers": "NUM-STALE",
    "padding": "NUM-PADDING",
    "pace": "NUM-PACE",
    "floor": "NUM-SPEED",
}
"""Check to the reason of its failure. Each must be there, or be named under `not_offered`."""

ON_CUDA = {"escaped_us": "NUM-ESCAPED", "late_launches": "NUM-ESCAPED"}
"""Likewise, for ops on a CUDA device."""

ESCAPED_US = 10.0
"""How much longer the device may be busy, over all streams, than the caller's stream, us."""

PACE = 3.0
"""How much slower content may be that was never seen: the median ratio of several rounds."""


def faults(record: ConductRecord | None) -> tuple[State, str, str] | None:
    """(state, reason, detail) of the first check that does not hold; None when all do."""
    for check in record.checks if record else ():
        assert record is not None
        told = _broken(check)
        if told:
            place = record.places.get(check.name, "")
            detail = f"{record.op} {check.name}: {told}{', first ' if place else ''}{place}"
            reason = (CHECKS | ON_CUDA).get(check.name, "NUM-UNCHECKED")
            return State.FAIL, reason, detail[:500]
    return None


def _broken(check: Check) -> str:
    """What is wrong, by limits of this rule and not of the record; empty when nothing is."""
    seen, bound = check.observed, check.bound
    if type(seen) not in (int, float) or type(bound) not in (int, float):
        return f"{seen!r} is no measure"
    assert isinstance(seen, int | float) and isinstance(bound, int | float)
    if check.name == "pace":
        text = f"new content takes {seen:.3g} x as long as the same again, limit {PACE:g}"
        return "" if seen <= PACE else text
    if check.name == "escaped_us":
        text = f"busy {seen:.3g} us longer than the caller's stream, limit {ESCAPED_US:g}"
        return "" if seen <= ESCAPED_US else text
    if check.name == "floor":
        text = f"fastest call {seen:.3g} s, the device needs at least {bound:.3g} s"
        return "" if seen >= bound else text
    return "" if seen == 0 else f"{seen} where none is allowed"


def gaps(record: ConductRecord | None) -> tuple[State, str, str] | None:
    """A cell whose conduct was not watched, or not in full."""
    if record is None:
        return State.INCONCLUSIVE, "NUM-UNCHECKED", "no record of the candidate's conduct"
    known = {check.name for check in record.checks} | set(record.not_offered)
    cuda = record.device.get("kind") == "cuda"
    wanted = [*CHECKS, *(ON_CUDA if cuda else ())]
    unchecked = [name for name in wanted if name not in known]
    if unchecked:
        return State.INCONCLUSIVE, "NUM-UNCHECKED", f"not watched: {unchecked[0]}"
    return None
