"""A candidate op's error, relative to the stock op's own error against an fp64 reference.

Per cell (op x regime) and output, over seeds: policy limits the ratio of error measures, judged by
a t interval on its logarithm. Above the limit is a FAIL; an interval that holds the limit is open.
Bias, a hard cap, NaN masks, untouched rows and repeats must hold; and the planted controls of the
same cell must all be refuted by the same conditions. Probes (other rows, shapes, scalars) must not
be refuted by them. A case whose reference disagrees with stock proves nothing about anyone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from fasttrack import stats
from fasttrack.rules import conduct
from fasttrack.rules.base import Case, Rule, missing
from fasttrack.schema import ConductRecord, ErrorStats, KernelRecord, Policy, State, Tier, Verdict

TINY, HUGE = 1e-12, 1e100
"""Bounds on error measures: ratios of any two, and powers of them, stay finite."""
SPREAD = 1.25
"""What a declared non-deterministic op may spread: this many times the spread of stock's repeats,
or of two results with errors of their own as large as stock's."""
QUANTITIES = ("rms", "q999", "worst_slice_rms", "max")


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per cell; ops of the claim without records are MISSING.

    Cells of a chosen few are not known before they leave records, so then no op is missed.
    """
    cells: dict[str, list[KernelRecord]] = defaultdict(list)
    for record in case.records(KernelRecord):
        cells[record.cell].append(record)
    behaved = {record.cell: record for record in case.records(ConductRecord)}
    for op in case.claim.scope.ops:
        seen = any(records[0].op == op for records in cells.values())
        if not seen and case.run.cell is None:
            yield missing("numerics", op, case, "kernels")
    for cell, records in cells.items():
        yield _cell(case, cell, records, behaved.get(cell))


def _cell(
    case: Case, cell: str, records: Sequence[KernelRecord], behaved: ConductRecord | None
) -> Verdict:
    real = [record for record in records if record.control is None and record.probe is None]
    ratio: float | None = None
    answer = _status(records) or _disagreement(real, case.policy) or conduct.faults(behaved)
    if answer is None:
        state, reason, detail, ratio = _judge_outputs(real, case.policy)
        answer = state, reason, detail
        if state is State.PASS:
            answer = (
                _probes(records, case.policy)
                or conduct.gaps(behaved)
                or _unsent(records, behaved)
                or _repeats(real, case)
                or _blind(records, case.policy)
                or answer
            )
    state, reason, detail = answer
    if state is State.PASS and behaved is not None and behaved.not_offered:
        detail += f"; not offered: {', '.join(behaved.not_offered)}"
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


STATUSES = {
    "unjudged": (State.INVALID, "NUM-UNJUDGED"),
    "absent": (State.MISSING, "NUM-ABSENT"),
    "memory": (State.FAIL, "NUM-MEMORY"),
    "malformed": (State.FAIL, "NUM-OUTPUT"),
    "unfit": (State.FAIL, "NUM-OUTPUT"),
    "hung": (State.FAIL, "NUM-HUNG"),
    "killed": (State.FAIL, "NUM-KILLED"),
    "raised": (State.FAIL, "NUM-CASE"),
}
"""Status of a record that compares nothing to the verdict of its cell; the first row decides."""

Answer = tuple[State, str, str]


def _status(records: Sequence[KernelRecord]) -> Answer | None:
    for status, (state, reason) in STATUSES.items():
        bad = next((record for record in records if record.status == status), None)
        if bad is not None:
            return state, reason, f"{bad.op} {status}: {bad.message}"[:480] + f", seed {bad.seed}"
    return None


def _disagreement(real: Sequence[KernelRecord], policy: Policy) -> Answer | None:
    """Stock itself far from the reference: one of the two is wrong, and which nobody here knows."""
    limit = policy.numerics.stock_rms_limit
    for record in real:
        stock = record.stock
        if stock is None:
            continue
        where = f"{record.op}.{record.output} seed {record.seed}"
        if stock.nonfinite:
            return (
                State.INVALID,
                "NUM-REFERENCE",
                f"{where}: {stock.nonfinite} elements of stock are NaN or Inf where the reference "
                f"is not, or the reverse; first at {stock.first_bad}",
            )
        if stock.rms is None or stock.rms > limit:
            rms = "beyond measure" if stock.rms is None else f"{stock.rms:.3g}"
            return (
                State.INVALID,
                "NUM-REFERENCE",
                f"{where}: stock's own error is {rms} of the reference's size, limit {limit:g}; "
                f"worst slice {stock.worst_slice}",
            )
    return None


PROBES = {
    "permuted": "NUM-ROWS",
    "hostile": "NUM-HOSTILE",
    "nonce": "NUM-STALE",
    "scalars": "NUM-FROZEN",
    "neighbours": "NUM-SHAPE",
    "padding": "NUM-PADDING",
    "skew": "NUM-SKEW",
    "graph": "NUM-GRAPH",
}
"""Probe to the reason when its results are refuted."""


def _probes(records: Sequence[KernelRecord], policy: Policy) -> Answer | None:
    """The first probe whose results are refuted, as a seed's own would be.

    Two seeds or one are enough here: what a probe looks for is far off, or above the cap. Each is
    judged by itself: answers to several probes of one seed, such as ranks late in several ways, are
    the same answer where the candidate is right, and no interval may take them for several.
    """
    sent: dict[str, list[KernelRecord]] = defaultdict(list)
    for record in records:
        if record.probe is not None:
            sent[record.probe].append(record)
    for probe, group in sent.items():
        disagrees = _disagreement(group, policy)
        if disagrees is not None:
            return disagrees
        state, reason, detail, _ = _judge_outputs(group, policy, least=1)
        if state is State.FAIL:
            kind = probe.partition(":")[0]
            return State.FAIL, PROBES.get(kind, reason), f"{probe}: {detail}"[:500]
    return None


def _unsent(records: Sequence[KernelRecord], behaved: ConductRecord | None) -> Answer | None:
    """A probe that nobody sent although nothing says that the case lacks the ability."""
    known = {record.probe.partition(":")[0] for record in records if record.probe is not None}
    if behaved is not None:
        known |= {*behaved.not_offered, *(check.name for check in behaved.checks)}
    if behaved is None or behaved.device.get("kind") != "cuda":
        # Only CUDA has graphs.
        known.add("graph")
    unsent = [probe for probe in PROBES if probe not in known]
    if unsent:
        return State.INCONCLUSIVE, "NUM-UNCHECKED", f"neither sent nor declined: {unsent[0]}"
    return None


def _repeats(real: Sequence[KernelRecord], case: Case) -> Answer | None:
    """At least as many repeats as policy asks for; at tier `smoke`, where cells take turns, any."""
    wanted = 1 if case.run.tier is Tier.SMOKE else case.policy.numerics.min_repeats
    counts: dict[str, int] = defaultdict(int)
    for record in real:
        if record.untouched_equal is None:
            counts[record.output] += record.repeats
    for output, count in counts.items():
        if count < wanted:
            detail = f"{output}: {count} repeats of {wanted}"
            return State.INCONCLUSIVE, "NUM-REPEATS", detail
    return None


def _blind(records: Sequence[KernelRecord], policy: Policy) -> Answer | None:
    blind = _accepted_controls(records, policy)
    if blind:
        detail = f"planted faults accepted: {', '.join(blind)}"
        return State.INSENSITIVE, "NUM-INSENSITIVE", detail
    return None


def _accepted_controls(records: Sequence[KernelRecord], policy: Policy) -> list[str]:
    """Names of planted faults that nothing refutes.

    The referee's own are planted in each output and must be refuted there; a case's own fault may
    show in any output.
    """
    controls: dict[str, list[KernelRecord]] = defaultdict(list)
    outputs = {record.output for record in records if record.control is not None}
    for record in records:
        if record.control is not None:
            own = record.control.startswith("case:") or len(outputs) == 1
            controls[record.control if own else f"{record.control} in {record.output}"].append(
                record
            )
    if not controls:
        return ["none was planted"]
    return [
        name
        for name, group in controls.items()
        if _judge_outputs(group, policy, least=1)[0] is not State.FAIL
    ]


def _judge_outputs(
    records: Sequence[KernelRecord], policy: Policy, least: int | None = None
) -> tuple[State, str, str, float | None]:
    """(state, reason, detail, worst rms ratio) over all outputs of one cell.

    `least` seeds are enough, by default those of the policy.
    """
    least = policy.numerics.min_seeds if least is None else least
    outputs: dict[str, list[KernelRecord]] = defaultdict(list)
    for record in records:
        outputs[record.output].append(record)
    ratios: list[float] = []
    undecided = ""
    for output, group in outputs.items():
        broken = _exact_conditions(output, group)
        if broken:
            return State.FAIL, *broken, None
        if len({record.seed for record in group}) < least:
            detail = f"{len(group)} seeds of {least}"
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
        if record.spread is not None:
            own = math.sqrt(2) * _value(record.stock, "rms", record)
            allowed = SPREAD * max(record.stock_spread or 0.0, own)
            if record.spread > allowed:
                return (
                    "NUM-SPREAD",
                    f"{where}: repeats differ by {record.spread:.3g}, stock's by "
                    f"{record.stock_spread or 0.0:.3g}, allowed {allowed:.3g}",
                )
        elif record.repeats_equal < record.repeats:
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
    return _interval_of(
        [math.log(_value(r.candidate, quantity, r) / _value(r.stock, quantity, r)) for r in group]
    )


def _interval_of(values: Sequence[float]) -> stats.Interval:
    """A t interval; of a single value everything, so that only the hard cap can refute it."""
    if len(values) > 1:
        return stats.t_interval(values, 0.05)
    return stats.Interval(values[0], min(values[0], -300.0), max(values[0], 300.0), 1)


def _bias(output: str, group: Sequence[KernelRecord], policy: Policy) -> tuple[str, str] | None:
    """Signed mean error, with the seeds' own spread allowed for."""
    signed = [_signed(r.candidate) for r in group]
    stock = [_signed(r.stock) for r in group]
    interval = _interval_of(signed)
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
