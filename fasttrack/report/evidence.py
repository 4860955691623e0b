"""The sections that show what the stages saw: speed, path, kernels, features, evals.

Owns their tables and the plot of speed-ups. Numbers come from verdicts and from `tally`; intervals
stand beside every estimate. Read by `build`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fasttrack.bundle.reader import Bundle
from fasttrack.report.model import (
    DETAIL,
    Curves,
    Forest,
    Mark,
    Panel,
    Section,
    Table,
    clean,
    interval,
    noise,
    number,
    table,
    times,
    urgency,
)
from fasttrack.report.tally import ENERGIES, Tally
from fasttrack.schema import Cell, State, Verdict
from fasttrack.schema.verdict import GOOD

MOST_ROWS = 80
MOST_REASONS = 4
WORKLOADS = {
    "decode": "decode: every lane decodes, nothing is prefilled; time per output token.",
    "prefill": "prefill: prompts alone, nothing is decoded; time per prompt token.",
    "mixed": "mixed: every lane decodes while prompts come and go; time per output token.",
}
"""Kinds of work that are never added up."""
K = 1024
DEVICE = (
    "On the device: the model's graph of a decode step by the device's own clock, without what the "
    "host does between steps; paired as above. It is described and not judged: speed is wall time."
)


def speed(bundle: Bundle, tally: Tally) -> Section:
    """Speed-up per cell of the grid, a table per workload, and tokens/s by parallelism."""
    verdicts = {v.cell: v for v in _of(bundle, "speed")}
    cells = bundle.claim.cells(bundle.run.target)
    if not verdicts:
        told = f"None of the {len(cells)} cells of the grid was measured."
        return Section("Speed", (told,), brief=True)
    level = f"{100 * (1 - 2 * bundle.policy.speed.look_level):.3g}% interval"
    rows: dict[str, list[tuple[object, ...]]] = defaultdict(list)
    marks = []
    found = {cell.id: verdicts.pop(cell.id, None) for cell in cells}
    for cell in cells:
        v = found[cell.id]
        marks.append(_mark(cell, v))
        said: tuple[object, ...] = ("-", "-", State.MISSING.value, "-", 0, "")
        if v is not None:
            said = (times(v.estimate), interval(v), v.state.value, noise(v), v.n, v.detail)
        own = tuple(cell.shape[axis] for axis in _several(cells))
        rows[cell.workload].append((*own, cell.batch, cell.context_tokens, *said))
    size = tuple(AXES[axis] for axis in _several(cells))
    columns = (
        *size,
        "Batch",
        "Context",
        "Speed-up",
        level,
        "State",
        "Noise floor",
        "Pairs",
        DETAIL,
    )
    notes = [
        "Stock time divided by the specialised path's, paired over engine boots. Above 1x is "
        "faster; a gain inside the noise floor is none.",
        *(WORKLOADS[workload] for workload in rows),
        *_energy(tally),
        *(
            f"{v.cell}: {v.state.value}. {v.detail}"
            for v in (*_of(bundle, "prompts"), *verdicts.values())
        ),
    ]
    forest = Forest(
        f"Speed-up over stock with its {level}", "batch \u00d7 context", "faster", "slower",
        tuple(marks[:MOST_ROWS]),
    )  # fmt: skip
    shown = [table(columns, of_one, MOST_ROWS) for of_one in rows.values()]
    shown.append(_throughput(cells, found))
    if any(v is not None and v.device_estimate is not None for v in found.values()):
        shown.append(_device(cells, found))
        notes.append(DEVICE)
    return Section("Speed", _clean(notes), tuple(shown), figure=forest, brief=True)


def _energy(tally: Tally) -> Iterator[str]:
    """Joules per token of both arms, where the machine tells them."""
    stock, mine = tally.energy.get("base"), tally.energy.get("candidate")
    if stock and mine:
        each = [found.joules / found.tokens for found in (stock, mine)]
        names = " and ".join(ENERGIES[name] for name in sorted(stock.sources | mine.sources))
        yield (
            f"Energy of {names}: {number(each[0])} J per token in stock, {number(each[1])} J "
            "specialised, over whole perf sessions and every token prefilled or handed out "
            "in them. No interval: it is not judged."
        )


AXES = ("TP", "DCP", "Drafts")
"""Headings of a shape's parts."""


def _several(cells: Sequence[Cell]) -> list[int]:
    """Places of the parts of their shape in which cells differ."""
    return [at for at, _ in enumerate(AXES) if len({cell.shape[at] for cell in cells}) > 1]


def _throughput(cells: Sequence[Cell], found: Mapping[str, Verdict | None]) -> Table:
    """Tokens per second of both arms and the speed-up, side by side per size of parallelism.

    Without cells of draft tokens, whose steps hand out as many as are accepted.
    """
    cells = [cell for cell in cells if not cell.draft_tokens]
    sizes = sorted({cell.shape[:2] for cell in cells})
    rows: dict[tuple[object, ...], list[object]] = {}
    for cell in cells:
        v = found[cell.id]
        said: list[object] = ["-", "-", "-"]
        if v is not None and v.base_ms and v.candidate_ms:
            tokens = 1 if cell.workload == "prefill" else cell.batch
            per_s = [tokens * 1000 / ms for ms in (v.base_ms, v.candidate_ms)]
            said = [*(f"{value:,.0f}" for value in per_s), times(v.estimate)]
        key = (cell.workload, cell.context_tokens, cell.batch)
        rows.setdefault(key, []).extend(said)
    names = [f"TP{ranks}" + (f" DCP{shared}" if shared > 1 else "") for ranks, shared in sizes]
    heads = [f"{what} {name}" for name in names for what in ("Stock tok/s", "Tok/s", "Speed-up")]
    shown = [(*key, *said) for key, said in rows.items()]
    return table(("Workload", "Context", "Batch", *heads), shown, MOST_ROWS)


def _device(cells: Sequence[Cell], found: Mapping[str, Verdict | None]) -> Table:
    """A step of the model by the device's clock, both arms."""
    rows: list[tuple[object, ...]] = []
    for cell in cells:
        v = found[cell.id]
        if v is not None and v.device_base_ms and v.device_candidate_ms:
            own = tuple(cell.shape[axis] for axis in _several(cells))
            times_ms = (number(v.device_base_ms), number(v.device_candidate_ms))
            range_ = f"[{times(v.device_lower)}, {times(v.device_upper)}]"
            ratio = times(v.device_estimate)
            rows.append((*own, cell.batch, cell.context_tokens, *times_ms, ratio, range_))
    size = tuple(AXES[axis] for axis in _several(cells))
    heads = ("Batch", "Context", "Stock ms on the device", "Ms on the device", "Ratio", "Interval")
    return table((*size, *heads), rows, MOST_ROWS)


def _mark(cell: Cell, verdict: Verdict | None) -> Mark:
    context = cell.context_tokens
    size = f"{context // K}k" if context >= K and context % K == 0 else str(context)
    kind = "" if cell.workload == "decode" else f" {cell.workload}"
    plain = Cell.model_fields
    shape = "".join(
        f" {name}{value}"
        for name, value, field in zip(AXES, cell.shape, cell.shape._fields, strict=True)
        if value != plain[field].default
    )
    label = clean(f"{cell.batch} \u00d7 {size}{kind}{shape}", 32)
    if verdict is None:
        return Mark(label, State.MISSING.value)
    return Mark(
        label, verdict.state.value, verdict.estimate, verdict.lower, verdict.upper, verdict.floor
    )


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
        return Section("Path evidence", ("No stage left a step log.",), brief=True)
    known = {v.cell: v.state.value for v in _of(bundle, "path")}
    rows = []
    for (stage, arm), found in tally.paths.items():
        told = "; ".join(f"{n}x {why}" for why, n in found.fallbacks.most_common(MOST_REASONS))
        rows.append(
            (stage, arm, found.specialised_decode, found.stock_decode, found.stock_prefill,
             found.specialised_prefill, known.get(f"{stage}/{arm}", "-"), told or "none")
        )  # fmt: skip
    columns = (
        "Stage", "Arm", "Specialised decode", "Stock decode", "Stock prefill",
        "Specialised prefill", "State", "Why stock",
    )  # fmt: skip
    note = (
        "Engine steps and what ran them, from the optimization's own step log; the path rule "
        "compares it with the engine's scheduler, step by step."
    )
    return Section("Path evidence", (note,), (table(columns, rows, MOST_ROWS),), brief=True)


def proofs(bundle: Bundle, tally: Tally) -> Section:
    """What the path stage proved, and cells of other stages that did not run as claimed."""
    summaries = {f"{stage}/{arm}" for stage, arm in tally.paths}
    others = [v for v in _of(bundle, "path") if v.cell not in summaries]
    if not others:
        return Section("Path proofs", ("Nothing was proved about the path.",))
    rows = [(v.cell, v.state.value, v.detail) for v in sorted(others, key=urgency)]
    note = (
        "What the harness saw for itself: a profiler's names, cache blocks, the claimed entry's "
        "result replaced by a constant; and every cell that did not run as claimed."
    )
    columns = ("Proof or cell", "State", DETAIL)
    return Section("Path proofs", (note,), (table(columns, rows, MOST_ROWS),))


def kernels(bundle: Bundle, tally: Tally) -> Section:
    """One line per op with its worst cell."""
    by_op: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in _of(bundle, "numerics"):
        by_op[tally.op_of_cell.get(verdict.cell, verdict.cell)].append(verdict)
    if not by_op:
        return Section("Kernels", ("No kernel was judged.",), brief=True)
    rows = []
    for op, verdicts in by_op.items():
        found = tally.ops.get(op)
        worst = max(verdicts, key=lambda v: (v.state not in GOOD, v.estimate or 0.0))
        counts = (
            (len(found.cells), len(found.outputs), len(found.seeds), len(found.controls),
             len(found.probes), found.calls, f"{found.repeats_equal}/{found.repeats}",
             ", ".join(sorted(found.not_offered)) or "-")
            if found
            else (0, 0, 0, 0, 0, 0, "-", "-")
        )  # fmt: skip
        rows.append((op, times(worst.estimate), worst.cell, *counts, states(verdicts)))
    columns = (
        "Op", "Worst ratio", "In cell", "Cells", "Outputs", "Seeds", "Planted faults",
        "Probes", "Calls", "Repeats equal", "Not offered", "States",
    )  # fmt: skip
    note = (
        "Error against an fp64 reference, as a multiple of the stock op's own error on the same "
        "inputs. Each cell must also reject its planted faults. Probes are calls with rows in "
        "another order, hostile rows, one changed element, other scalars and shapes; a check named "
        "as not offered was not made in some cell, because the case has no ability for it."
    )
    return Section("Kernels", (note,), (table(columns, rows, MOST_ROWS),), brief=True)


def features(bundle: Bundle, tally: Tally) -> Section:
    """What users rely on: feature by arm, and what follows."""
    rows = [
        (v.cell, tally.features.get(v.cell, {}).get("base", "not run"),
         tally.features.get(v.cell, {}).get("candidate", "not run"),
         v.state.value, tally.feature_steps[v.cell], v.detail)
        for v in _of(bundle, "features")
    ]  # fmt: skip
    if not rows:
        return Section("Features", ("No feature was judged.",))
    columns = ("Feature", "Stock", "Specialised", "State", "Specialised steps", DETAIL)
    note = (
        "Each feature was used in both arms. Tolerances are what stock shows against itself in "
        "other batches."
    )
    return Section("Features", (note,), (table(columns, rows, MOST_ROWS),))


def evals(bundle: Bundle, tally: Tally) -> Section:
    """Answers of both arms to the same items."""
    rows = [
        (v.cell, v.state.value, number(v.estimate), interval(v), number(v.floor), v.unit, v.n,
         v.detail)
        for v in _of(bundle, "quality")
    ]  # fmt: skip
    if not rows:
        return Section("Evals", ("No eval was judged.",))
    counted = "; ".join(f"{name} {arm}: {n}" for (name, arm), n in sorted(tally.items.items()))
    columns = ("Eval", "State", "Estimate", "Interval", "Limit", "Unit", "Items", DETAIL)
    note = f"Item-paired, both arms on the same prompts. Answers recorded: {counted or 'none'}."
    panels = _drifts(tally)
    tables = [table(columns, rows, MOST_ROWS)]
    if panels:
        tables.append(_by_context(panels))
    title = "Base's answers, forced: mean change of the gap between the two likeliest tokens"
    figure = Curves(title, "nats", panels) if panels else None
    return Section("Evals", _clean((note,)), tuple(tables), figure)


def _by_context(panels: Sequence[Panel]) -> Table:
    """The figure's numbers."""
    columns = ("Replayed eval", "Context, tokens", "Stock against stock, nats", "Candidate, nats")
    rows = [(name, *map(number, point)) for name, points in panels for point in points]
    return table(columns, rows, MOST_ROWS)


def _drifts(tally: Tally) -> tuple[Panel, ...]:
    """Mean change of the gap per eval and context, where both arms have it."""
    panels = []
    for name, contexts in tally.drifts.items():
        means = {
            context: {arm: total / count for arm, (total, count) in arms.items()}
            for context, arms in sorted(contexts.items())
        }
        points = [(at, m["base"], m["candidate"]) for at, m in means.items() if len(m) == 2]
        if points:
            panels.append((name, tuple(points)))
    return tuple(panels)


def states(verdicts: Sequence[Verdict]) -> str:
    """``1 FAIL, 5 PASS``: how many verdicts say what, worst first."""
    found = [v.state.value for v in sorted(verdicts, key=urgency)]
    return ", ".join(f"{found.count(state)} {state}" for state in dict.fromkeys(found))


def _of(bundle: Bundle, rule: str) -> list[Verdict]:
    return [verdict for verdict in bundle.verdicts if verdict.rule == rule]


def _clean(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(clean(note, 800) for note in notes)
