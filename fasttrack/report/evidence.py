"""The sections that show what the stages saw: speed, path, kernels, features, evals.

Owns their tables. Numbers come from verdicts and from `tally`; intervals stand beside every
estimate. Read by `build`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from fasttrack.bundle.reader import Bundle
from fasttrack.report.model import DETAIL, Section, clean, table
from fasttrack.report.tally import Tally
from fasttrack.schema import Verdict
from fasttrack.schema.verdict import GOOD

MOST_ROWS = 80
MOST_REASONS = 4


def speed(bundle: Bundle) -> Section:
    """Speed-up per cell of the grid: batch x context, with interval, floor and state."""
    verdicts = {v.cell: v for v in _of(bundle, "speed")}
    level = 100 * (1 - 2 * bundle.policy.speed.level)
    rows = []
    for cell in bundle.claim.cells(bundle.run.target):
        v = verdicts.pop(cell.id, None)
        if v is None:
            rows.append((cell.batch, cell.context_tokens, "-", "-", "-", 0, "MISSING", ""))
            continue
        floor = "-" if v.floor is None else f"±{(v.floor - 1) * 100:.1f} %"
        rows.append(
            (cell.batch, cell.context_tokens, _times(v.estimate), _interval(v, _times), floor, v.n,
             v.state.value, v.detail)
        )  # fmt: skip
    columns = (
        "Batch", "Context", "Speed-up", f"{level:.0f}% interval", "Noise floor", "Pairs", "State",
        DETAIL,
    )  # fmt: skip
    notes = [
        "Decode only: stock time per output token divided by the specialised path's, paired over "
        "engine boots. Above 1x is faster; a gain inside the noise floor is none.",
        *(f"{v.cell}: {v.state.value}. {v.detail}" for v in verdicts.values()),
    ]
    return Section("Decode speed", _clean(notes), (table(columns, rows, MOST_ROWS),))


def isolation(bundle: Bundle) -> Section:
    """Whether the change stays in its scope and leaves the switched-off engine alone."""
    rows = [(v.cell, v.state.value, v.n, v.detail) for v in _of(bundle, "isolation")]
    if not rows:
        return Section("Isolation", ("Isolation was not judged.",))
    columns = ("Subject", "State", "Checks", DETAIL)
    return Section("Isolation", tables=(table(columns, rows, MOST_ROWS),))


def paths(bundle: Bundle, tally: Tally) -> Section:
    """Which path ran, per stage and arm, and why the others did not."""
    if not tally.paths:
        return Section("Path evidence", ("No stage left a step log.",))
    states = {v.cell: v.state.value for v in _of(bundle, "path")}
    rows = []
    for (stage, arm), found in tally.paths.items():
        told = "; ".join(f"{n}x {why}" for why, n in found.fallbacks.most_common(MOST_REASONS))
        rows.append(
            (stage, arm, found.specialised_decode, found.stock_decode, found.stock_prefill,
             found.specialised_prefill, told or "none", states.get(f"{stage}/{arm}", "-"))
        )  # fmt: skip
    columns = (
        "Stage", "Arm", "Specialised decode", "Stock decode", "Stock prefill",
        "Specialised prefill", "Why stock", "State",
    )  # fmt: skip
    note = (
        "Engine steps and what ran them, from the optimization's own step log; the path rule "
        "compares it with the engine's scheduler, step by step."
    )
    return Section("Path evidence", (note,), (table(columns, rows, MOST_ROWS),))


def kernels(bundle: Bundle, tally: Tally) -> Section:
    """One line per op with its worst cell."""
    by_op: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in _of(bundle, "numerics"):
        by_op[tally.op_of_cell.get(verdict.cell, verdict.cell)].append(verdict)
    if not by_op:
        return Section("Kernels", ("No kernel was judged.",))
    rows = []
    for op, verdicts in by_op.items():
        found = tally.ops.get(op)
        worst = max(verdicts, key=lambda v: (v.state not in GOOD, v.estimate or 0.0))
        states = dict.fromkeys(v.state.value for v in verdicts)
        told = ", ".join(f"{sum(v.state.value == s for v in verdicts)} {s}" for s in states)
        counts = (
            (len(found.cells), len(found.outputs), len(found.seeds), len(found.controls),
             f"{found.repeats_equal}/{found.repeats}")
            if found
            else (0, 0, 0, 0, "-")
        )  # fmt: skip
        rows.append((op, *counts, _times(worst.estimate), worst.cell, told))
    columns = (
        "Op", "Cells", "Outputs", "Seeds", "Planted faults", "Repeats equal", "Worst ratio",
        "In cell", "Verdicts",
    )  # fmt: skip
    note = (
        "Error against an fp64 reference, as a multiple of the stock op's own error on the same "
        "inputs. Each cell must also reject its planted faults."
    )
    return Section("Kernels", (note,), (table(columns, rows, MOST_ROWS),))


def features(bundle: Bundle) -> Section:
    """What users rely on, kept or refused as declared."""
    rows = [(v.cell, v.state.value, v.n, v.detail) for v in _of(bundle, "features")]
    if not rows:
        return Section("Features", ("No feature was judged.",))
    columns = ("Feature", "State", "Checks", DETAIL)
    return Section("Features", tables=(table(columns, rows, MOST_ROWS),))


def evals(bundle: Bundle, tally: Tally) -> Section:
    """Answers of both arms to the same items."""
    rows = [
        (v.cell, v.state.value, _number(v.estimate), _interval(v, _number), _number(v.floor),
         v.unit, v.n, v.detail)
        for v in _of(bundle, "quality")
    ]  # fmt: skip
    if not rows:
        return Section("Evals", ("No eval was judged.",))
    counted = "; ".join(f"{name} {arm}: {n}" for (name, arm), n in sorted(tally.items.items()))
    columns = ("Eval", "State", "Estimate", "Interval", "Limit", "Unit", "Items", DETAIL)
    note = f"Item-paired, both arms on the same prompts. Answers recorded: {counted or 'none'}."
    return Section("Evals", _clean((note,)), (table(columns, rows, MOST_ROWS),))


def _of(bundle: Bundle, rule: str) -> list[Verdict]:
    return [verdict for verdict in bundle.verdicts if verdict.rule == rule]


def _clean(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(clean(note, 800) for note in notes)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _interval(verdict: Verdict, shown: Callable[[float | None], str]) -> str:
    if verdict.lower is None or verdict.upper is None:
        return "-"
    return f"{shown(verdict.lower)} to {shown(verdict.upper)}"
