"""A candidate op's error, relative to the stock op's own error against an fp64 reference.

Per cell (op x regime) and output, over seeds: policy limits the ratio of error measures, judged by
a t interval on its logarithm. Above the limit is a FAIL; an interval that holds the limit is open.
Bias, a hard cap, NaN masks, untouched rows and repeats must hold; and the planted controls of the
same cell must all be refuted by the same conditions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from fasttrack import stats
from fasttrack.rules.base import Case, Rule, missing
from fasttrack.schema import ErrorStats, KernelRecord, Policy, State, Verdict

TINY, HUGE = 1e-12, 1e100
"""Bounds on error measures: ratios of any two, and powers of them, stay finite."""
QUANTITIES = ("rms", "q999", "worst_slice_rms", "max")


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per cell; ops of the claim without records are MISSING.

    Cells of a chosen few are not known before they leave records, so then no op is missed.
    """
    cells: dict[str, list[KernelRecord]] = defaultdict(list)
    for record in case.records(KernelRecord):
        cells[record.cell].append(record)
    for op in case.claim.scope.ops:
        seen = any(records[0].op == op for records in cells.values())
        if not seen and case.run.cell is None:
            yield missing("numerics", op, case, "kernels")
    for cell, records in cells.items():
        yield _cell(case, cell, records)


def _cell(case: Case, cell: str, records: Sequence[KernelRecord]) -> Verdict:
    real = [record for record in records if record.control is None]
    state, reason, detail, ratio = _judge_outputs(real, case.policy)
    if state is State.PASS:
        blind = _accepted_controls(records, case.policy)
        if blind:
            state, reason = State.INSENSITIVE, "NUM-INSENSITIVE"
            detail = f"planted faults accepted: {', '.join(blind)}"
    return Verdict(
        rule="numerics",
        cell=cell,
        state=state,
        reason=reason,
        detail=detail,
        estimate=ratio,
        unit="error / stock error",
        n=len({record.seed for record in real}),
        next="" if state is State.PASS else case.reproduce("kernels", cell),
    )


def _accepted_controls(records: Sequence[KernelRecord], policy: Policy) -> list[str]:
    controls: dict[str, list[KernelRecord]] = defaultdict(list)
    for record in records:
        if record.control is not None:
            controls[record.control].append(record)
    if not controls:
        return ["none was planted"]
    return [
        name
        for name, group in controls.items()
        if _judge_outputs(group, policy)[0] is not State.FAIL
    ]


def _judge_outputs(
    records: Sequence[KernelRecord], policy: Policy
) -> tuple[State, str, str, float | None]:
    """(state, reason, detail, worst rms ratio) over all outputs of one cell."""
    bad = next((record for record in records if record.status != "ok"), None)
    if bad is not None:
        return State.FAIL, "NUM-CASE", f"{bad.op} {bad.status}: {bad.message}"[:500], None
    outputs: dict[str, list[KernelRecord]] = defaultdict(list)
    for record in records:
        outputs[record.output].append(record)
    ratios: list[float] = []
    undecided = ""
    for output, group in outputs.items():
        broken = _exact_conditions(output, group)
        if broken:
            return State.FAIL, *broken, None
        if len({record.seed for record in group}) < policy.numerics.min_seeds:
            detail = f"{len(group)} seeds of {policy.numerics.min_seeds}"
            return State.INCONCLUSIVE, "NUM-SEEDS", detail, None
        broken = _error_conditions(output, group, policy)
        if broken:
            return State.FAIL, *broken, math.exp(_interval(group, "rms").estimate)
        undecided = undecided or _undecided(output, group, policy)
        ratios.append(math.exp(_interval(group, "rms").estimate))
    if not ratios:
        return State.MISSING, "NO-RECORDS", "no output was compared", None
    if undecided:
        return State.INCONCLUSIVE, "NUM-POWER", undecided, max(ratios)
    return State.PASS, "OK", f"{len(outputs)} outputs within limits", max(ratios)


def _exact_conditions(output: str, group: Sequence[KernelRecord]) -> tuple[str, str] | None:
    for record in group:
        where = f"{record.op}.{output} seed {record.seed}"
        candidate = record.candidate
        if record.stock is None or candidate is None:
            return "NUM-CASE", f"{where}: not compared"
        if record.untouched_equal is False:
            return "NUM-TOUCHED", f"{where}: rows it does not own changed"
        if candidate.nonfinite:
            return (
                "NUM-NONFINITE",
                f"{where}: {candidate.nonfinite} elements, first at {candidate.first_bad}",
            )
        if record.repeats_equal < record.repeats:
            differ = record.repeats - record.repeats_equal
            return "NUM-REPEAT", f"{where}: {differ} of {record.repeats} repeats differ"
    return None


def _error_conditions(
    output: str, group: Sequence[KernelRecord], policy: Policy
) -> tuple[str, str] | None:
    limits = policy.numerics
    op = group[0].op
    for quantity in QUANTITIES:
        interval = _interval(group, quantity)
        limit = getattr(limits, f"ratio_{quantity}")
        if not math.exp(interval.lower) <= limit:
            place = max(group, key=lambda r: _value(r.candidate, quantity, r)).candidate
            assert place is not None
            return (
                "NUM-RATIO",
                f"{op}.{output}: {quantity} error {math.exp(interval.estimate):.3g} x stock's "
                f"(at least {math.exp(interval.lower):.3g}, limit {limit:g}); "
                f"worst slice {place.worst_slice}, worst element {place.first_bad}",
            )
    cap = limits.hard_cap * max(_value(r.stock, "max", r) for r in group)
    for record in group:
        if _value(record.candidate, "max", record) > cap and record.candidate is not None:
            return (
                "NUM-CAP",
                f"{op}.{output} seed {record.seed}: element {record.candidate.first_bad} is "
                f"{_value(record.candidate, 'max', record):.3g} off, cap {cap:.3g}",
            )
    return _bias(output, group, policy)


def _undecided(output: str, group: Sequence[KernelRecord], policy: Policy) -> str:
    """The first ratio whose interval holds its limit: neither above nor below; empty for none."""
    for quantity in QUANTITIES:
        interval = _interval(group, quantity)
        limit = getattr(policy.numerics, f"ratio_{quantity}")
        if math.exp(interval.upper) > limit:
            return (
                f"{group[0].op}.{output}: {quantity} error {math.exp(interval.estimate):.3g} x "
                f"stock's, up to {math.exp(interval.upper):.3g}, limit {limit:g}, "
                f"{interval.n} seeds"
            )
    return ""


def _interval(group: Sequence[KernelRecord], quantity: str) -> stats.Interval:
    """Of the logarithm of candidate's error over stock's, over seeds."""
    return stats.t_interval(
        [math.log(_value(r.candidate, quantity, r) / _value(r.stock, quantity, r)) for r in group],
        0.05,
    )


def _bias(output: str, group: Sequence[KernelRecord], policy: Policy) -> tuple[str, str] | None:
    """Signed mean error, with the seeds' own spread allowed for."""
    signed = [_signed(r.candidate) for r in group]
    stock = [_signed(r.stock) for r in group]
    interval = stats.t_interval(signed, 0.05)
    least = max(0.0, interval.lower, -interval.upper)
    rms = stats.mean([_value(r.stock, "rms", r) for r in group])
    allowed = max(policy.numerics.bias_ratio * abs(stats.mean(stock)), 0.1 * rms)
    if least > allowed:
        return (
            "NUM-BIAS",
            f"{group[0].op}.{output}: mean signed error {interval.estimate:.3g}, allowed "
            f"{allowed:.3g}",
        )
    return None


def _signed(error: ErrorStats | None) -> float:
    value = error.mean_signed if error is not None else None
    return HUGE if value is None else max(-HUGE, min(value, HUGE))


def _value(error: ErrorStats | None, quantity: str, record: KernelRecord) -> float:
    """An error measure, not below the rounding of the reference; `HUGE` when not finite."""
    value = getattr(error, quantity) if error is not None else None
    if value is None:
        return HUGE
    return min(max(float(value), record.rounding_rms, TINY), HUGE)


RULES = (Rule("numerics", "kernels", judge),)
