"""Paired speed-up per cell against its own noise floor, and the claimed sentence.

Unit of replication: a pair of engine boots. Within a block of four (A B B A) the pairs are
(first, second) and (fourth, third), so linear drift cancels between them. A session's value is the
median step time of its steady window. When pairs are looked at is in `looks`, which samples count
in `validity`. The sentence is an intersection-union test: it holds exactly when each of its cells
does, so its own level needs no further correction (Berger, Technometrics 24, 1982).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fasttrack import stats
from fasttrack.perf.window import cost_s, window
from fasttrack.rules import device, drafts, looks, routing
from fasttrack.rules.base import Case, Rule
from fasttrack.rules.looks import Boot, Look, Pair, paired
from fasttrack.rules.validity import (
    baseline_problem,
    engine_problem,
    exercised,
    machine_problems,
    problem_of,
)
from fasttrack.schema import (
    ARMS,
    Cell,
    PathRecord,
    SampleRecord,
    Sentence,
    State,
    Verdict,
)
from fasttrack.schema.claim import Speed


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per planned cell, then the sentence."""
    cells = [(seen.cell, _verdict_of(case, seen)) for seen in _look_at(case)]
    yield from (verdict for _, verdict in cells)
    if cells:
        yield _sentence(case, cells)


def settled(case: Case, pairs: int) -> frozenset[str]:
    """Cells that need no further block: decided at a planned look, or with `pairs` valid ones.

    So says the sweep, before each block, of the blocks that were measured; what it leaves out the
    rule would not look at either.
    """
    return frozenset(
        seen.cell.id
        for seen in _look_at(case)
        if seen.state in (State.NOT_EXERCISED, State.UNSUPPORTED)
        or len(seen.pairs) >= pairs
        or (seen.look is not None and seen.look.settled)
    )


BINS = 4
"""Of a histogram of achieved batches or contexts."""
COSTS = {
    "decode": "TPOT",
    "prefill": "time per prompt token",
    "mixed": "TPOT beside prefill",
}
"""What is compared in each workload; times of different workloads are never added."""


def _cost(cell: Cell) -> str:
    return f"a step of {cell.draft_tokens} drafts" if cell.draft_tokens else COSTS[cell.workload]


@dataclass(frozen=True)
class _Seen:
    """Everything known of one cell. `state` is set where no speed can be told."""

    cell: Cell
    samples: Sequence[SampleRecord] = ()
    state: State | None = None
    reason: str = ""
    detail: str = ""
    pairs: Sequence[Pair] = ()
    look: Look | None = None


def _look_at(case: Case) -> list[_Seen]:
    """The planned cells that the run was to measure, each with its last look."""
    problem = _problem(case)
    machine = machine_problems(case)
    routed = routing.problems(case)
    by_cell: dict[str, list[SampleRecord]] = defaultdict(list)
    for sample in case.records(SampleRecord):
        by_cell[sample.cell].append(sample)
    found = [
        _validated(case, cell, by_cell[cell.id], problem, machine, routed)
        for cell in case.claim.cells(case.run.target)
        if case.wants(cell.id)
    ]
    noise = _noise(found)
    return [
        replace(
            seen,
            look=looks.decide(
                seen.pairs,
                noise[seen.cell.noise_class],
                case.policy.speed,
                claimed_faster(case.claim.speed, seen.cell),
            ),
        )
        for seen in found
    ]


def _problem(case: Case) -> tuple[str, str]:
    """(reason, why) no cell of the run counts; an empty why if they do."""
    why = engine_problem(case)
    return ("VAL-ENGINE", why) if why else ("VAL-BASELINE", baseline_problem(case))


def _validated(
    case: Case,
    cell: Cell,
    samples: Sequence[SampleRecord],
    problem: tuple[str, str],
    machine: Mapping[str, str],
    routed: Mapping[int, str],
) -> _Seen:
    """Which samples count, decided before any duration is read."""
    declared = case.target.grid.unsupported_because(cell.id)
    if declared:
        return _Seen(cell, (), State.UNSUPPORTED, "SPD-UNSUPPORTED", declared)
    refused = drafts.refusal(case, cell)
    if refused is not None:
        state, told = refused
        return _Seen(cell, (), state, "SPD-REFUSED", told)
    if not samples:
        return _Seen(cell, (), State.MISSING, "NO-RECORDS", "no session measured this cell")
    if problem[1]:
        return _Seen(cell, (), State.INVALID, *problem)
    if len({sample.prompts_sha256 for sample in samples}) > 1:
        told = "its sessions were asked different prompts"
        return _Seen(cell, (), State.INVALID, "VAL-PROMPTS", told)
    paths = [p for p in case.records(PathRecord) if p.stage == "perf" and p.arm == "candidate"]
    unused = [s for s in samples if s.arm == "candidate" and not exercised(s, cell, paths)]
    if unused:
        detail = f"session {unused[0].session} did not run the specialised path in its window"
        return _Seen(cell, (), State.NOT_EXERCISED, "PATH-NONE", detail)
    problems = {s.session: problem_of(s, cell, case, machine, routed) for s in samples}
    excluded = sorted(f"{session}: {why}" for session, (_, why) in problems.items() if why)
    valid = [s for s in samples if not problems[s.session][0]]
    unequal = drafts.acceptance_problem(valid, cell, case)
    if unequal:
        return _Seen(cell, (), State.INVALID, "VAL-ACCEPT", unequal)
    pairs = _pairs(valid, cell)
    if len(excluded) > case.policy.speed.max_excluded_share * len(samples):
        reason = Counter(reason for reason, _ in problems.values() if reason).most_common(1)[0][0]
        return _Seen(cell, valid, State.INVALID, reason, "; ".join(excluded[:3]), pairs)
    return _Seen(cell, valid, None, "", "; ".join(excluded), pairs)


def _verdict_of(case: Case, seen: _Seen) -> Verdict:
    if seen.state is not None:
        return _verdict(case, seen.cell, seen.state, seen.reason, seen.detail)
    look = seen.look
    looks_planned = case.policy.speed.look_pairs
    if look is None:
        detail = f"{len(seen.pairs)} valid pairs of {looks_planned[0]}"
        if seen.detail:
            detail += f"; excluded {seen.detail}"
        return _verdict(case, seen.cell, State.INCONCLUSIVE, "SPD-PAIRS", detail)
    used = seen.pairs[look.interval.n - 1].block
    times = {
        arm: stats.median(
            [cost_s(s.steps, seen.cell) for s in seen.samples if s.arm == arm and s.block <= used]
        )
        * 1e3
        for arm in ARMS
    }
    detail = (
        f"{_cost(seen.cell)} {times['base']:.3g} -> {times['candidate']:.3g} ms, look "
        f"{look.number} of {len(looks_planned)}{_achieved(seen)}"
        f"{drafts.told(seen.samples, seen.cell, case)}"
    )
    if seen.detail:
        detail += f"; excluded {seen.detail}"
    return Verdict(
        rule="speed",
        cell=seen.cell.id,
        state=look.state,
        reason=look.reason,
        detail=detail,
        deciding=False,
        estimate=math.exp(look.interval.estimate),
        lower=math.exp(look.interval.lower),
        upper=math.exp(look.interval.upper),
        unit="x",
        n=look.interval.n,
        floor=math.exp(look.floor),
        base_ms=times["base"],
        candidate_ms=times["candidate"],
        next=case.reproduce("perf", seen.cell.id),
        **device.described(seen.samples, seen.cell, case.policy.speed.look_level),
    )


def _achieved(seen: _Seen) -> str:
    """Rows and context of the steps that counted, as histograms beside the label."""
    if seen.cell.workload == "prefill":
        return ""
    rows: list[float] = []
    contexts: list[float] = []
    for sample in seen.samples:
        chosen = window(sample.steps, seen.cell)
        lanes = seen.cell.lane_tokens
        rows += [step.decode_tokens / lanes for step in sample.steps[chosen.start : chosen.stop]]
        told = sample.contexts[chosen.start : chosen.stop]
        contexts += [context / seen.cell.batch for context in told]
    text = f"; achieved batch {_histogram(rows)}"
    if seen.cell.workload == "decode":
        text += f", context {_histogram(contexts)}"
    return text


def _histogram(values: Sequence[float]) -> str:
    """``8``, or shares of the steps in bins of equal width: ``64-71 50 %, 72-79 50 %``."""
    whole = [round(value) for value in values]
    low, high = min(whole), max(whole)
    if low == high:
        return str(low)
    width = -(-(high - low + 1) // BINS)
    counts = Counter((value - low) // width for value in whole)
    told = []
    for at in sorted(counts):
        first = low + at * width
        last = min(high, first + width - 1)
        name = str(first) if first == last else f"{first}-{last}"
        told.append(f"{name} {100 * counts[at] / len(whole):.0f} %")
    return ", ".join(told)


def _noise(found: Sequence[_Seen]) -> dict[str, dict[int, float]]:
    """Per class and block: root mean square of ln(first / second) of the block's base boots.

    Cells of a class share their boots, so their differences within a block count as one.
    """
    squares: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seen in found:
        blocks: dict[int, list[float]] = defaultdict(list)
        for sample in sorted(seen.samples, key=lambda sample: sample.position):
            if sample.arm == "base":
                blocks[sample.block].append(math.log(cost_s(sample.steps, seen.cell)))
        for block, boots in blocks.items():
            if len(boots) == 2:
                squares[seen.cell.noise_class][block].append((boots[0] - boots[1]) ** 2)
    made: dict[str, dict[int, float]] = {seen.cell.noise_class: {} for seen in found}
    for name, by_block in squares.items():
        made[name] = {block: math.sqrt(stats.mean(all_)) for block, all_ in by_block.items()}
    return made


def _pairs(samples: Sequence[SampleRecord], cell: Cell) -> list[Pair]:
    return paired(Boot(s.block, s.position, s.arm, cost_s(s.steps, cell)) for s in samples)


def _verdict(case: Case, cell: Cell, state: State, reason: str, detail: str) -> Verdict:
    return Verdict(
        rule="speed",
        cell=cell.id,
        state=state,
        reason=reason,
        detail=detail,
        deciding=False,
        next=case.reproduce("perf", cell.id),
    )


def claimed_faster(speed: Speed, cell: Cell) -> bool:
    """Whether the sentence says of this cell that it is faster, and not only no slower."""
    named = speed.sentence is Sentence.FASTER_EVERYWHERE or cell.batch in speed.faster_batches
    return named and cell.workload in speed.faster_workloads


def _sentence(case: Case, cells: Sequence[tuple[Cell, Verdict]]) -> Verdict:
    speed = case.claim.speed
    margin = 1 - speed.slower_margin_percent / 100
    holds: list[str] = []
    broken: list[str] = []
    open_: list[str] = []
    supported = [(cell, v) for cell, v in cells if v.state is not State.UNSUPPORTED]
    for cell, verdict in supported:
        if verdict.lower is None or verdict.upper is None:
            failed = verdict.state is State.NOT_EXERCISED
            (broken if failed else open_).append(f"{cell.id} {verdict.state}")
        elif claimed_faster(speed, cell):
            if verdict.state is State.FASTER:
                holds.append(cell.id)
            elif verdict.state in (State.SLOWER, State.EQUIVALENT):
                broken.append(f"{cell.id} {verdict.state}")
            else:
                open_.append(f"{cell.id} {verdict.state}")
        elif verdict.lower > margin:
            holds.append(cell.id)
        else:
            (broken if verdict.upper < margin else open_).append(f"{cell.id} {verdict.state}")
    if broken:
        state = State.FAIL
    elif open_ or not holds:
        state = State.INCONCLUSIVE
    else:
        state = State.PASS
    named = ", ".join((broken or open_)[:6])
    words = speed.sentence.value.replace("_", " ")
    if speed.sentence is not Sentence.SLOWER_NOWHERE:
        words += f" ({', '.join(speed.faster_workloads)})"
    count = f"{len(supported)} cells"
    if len(supported) < len(cells):
        count = f"{len(supported)} of {len(cells)} cells"
    return Verdict(
        rule="speed",
        cell="sentence",
        state=state,
        reason="OK" if state is State.PASS else "SPD-SENTENCE",
        detail=f"'{words}' over {count}" + (f": {named}" if named else " holds" if holds else ""),
        n=len(supported),
        next="" if state is State.PASS else case.reproduce("perf"),
    )


RULES = (Rule("speed", "perf", judge),)
