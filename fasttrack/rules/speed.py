"""Paired speed-up per cell against its own noise floor, and the claimed sentence.

Unit of replication: a pair of engine boots. Within a block of four (A B B A) the pairs are
(first, second) and (fourth, third), so linear drift cancels between them. A session's value is the
median step time of its steady window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from fasttrack import stats
from fasttrack.perf.window import decode_window
from fasttrack.rules.base import Case, Rule
from fasttrack.rules.validity import clock_problem, engine_problem, exercised, sample_problem
from fasttrack.schema import Cell, PathRecord, SampleRecord, Sentence, State, Verdict


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per planned cell, then the sentence."""
    problem = engine_problem(case)
    planned = [cell for cell in case.claim.cells(case.run.target) if case.wants(cell.id)]
    cells = [(cell, _cell(case, cell, problem)) for cell in planned]
    yield from (verdict for _, verdict in cells)
    if cells:
        yield _sentence(case, cells)


def _cell(case: Case, cell: Cell, problem: str) -> Verdict:
    samples = [s for s in case.records(SampleRecord) if s.cell == cell.id]
    if not samples:
        return _verdict(case, cell, State.MISSING, "NO-RECORDS", "no session measured this cell")
    if problem:
        return _verdict(case, cell, State.INVALID, "VAL-ENGINE", problem)
    paths = [p for p in case.records(PathRecord) if p.stage == "perf" and p.arm == "candidate"]
    unused = [s for s in samples if s.arm == "candidate" and not exercised(s, cell, paths)]
    if unused:
        detail = f"session {unused[0].session} did not run the specialised path in its window"
        return _verdict(case, cell, State.NOT_EXERCISED, "PATH-NONE", detail)
    clocks = {s.session: clock_problem(s, case) for s in samples}
    problems = {s.session: sample_problem(s, cell) or clocks[s.session] for s in samples}
    excluded = sorted(f"{session}: {why}" for session, why in problems.items() if why)
    if len(excluded) > case.policy.speed.max_excluded_share * len(samples):
        reason = "VAL-CLOCK" if any(clocks.values()) else "VAL-TOKENS"
        return _verdict(case, cell, State.INVALID, reason, "; ".join(excluded[:3]))
    valid = [s for s in samples if not problems[s.session]]
    return _decide(case, cell, valid, excluded)


def _decide(
    case: Case, cell: Cell, samples: Sequence[SampleRecord], excluded: Sequence[str]
) -> Verdict:
    policy = case.policy.speed
    logs = _pair_logs(samples, cell)
    timed = [(sample, step_seconds(sample, cell)) for sample in samples]
    base = _base_differences(timed)
    if len(logs) < policy.min_pairs or not base:
        detail = f"{len(logs)} valid pairs of {policy.min_pairs}"
        return _verdict(case, cell, State.INCONCLUSIVE, "SPD-PAIRS", detail)
    interval = stats.t_interval(logs, policy.level)
    least = math.log1p(policy.min_floor_percent / 100)
    floor = max(least, stats.noise_floor(base, len(logs), policy.level))
    # The margin alone: a loud machine must not turn "cannot tell" into "no difference".
    same = math.log1p(policy.equivalence_margin_percent / 100)
    if interval.lower > floor:
        state, reason = State.FASTER, "SPD-FASTER"
    elif interval.upper < -floor:
        state, reason = State.SLOWER, "SPD-SLOWER"
    elif -same < interval.lower and interval.upper < same:
        state, reason = State.EQUIVALENT, "SPD-EQUIVALENT"
    else:
        state, reason = State.INCONCLUSIVE, "SPD-NOISE"
    times = {
        arm: stats.median([seconds for sample, seconds in timed if sample.arm == arm]) * 1e3
        for arm in ("base", "candidate")
    }
    detail = f"TPOT {times['base']:.3g} -> {times['candidate']:.3g} ms"
    if excluded:
        detail += f"; excluded {'; '.join(excluded)}"
    return Verdict(
        rule="speed",
        cell=cell.id,
        state=state,
        reason=reason,
        detail=detail,
        deciding=False,
        estimate=math.exp(interval.estimate),
        lower=math.exp(interval.lower),
        upper=math.exp(interval.upper),
        unit="x",
        n=interval.n,
        floor=math.exp(floor),
        next=case.reproduce("perf", cell.id),
    )


def step_seconds(sample: SampleRecord, cell: Cell) -> float:
    """Median duration of the steady steps, seconds."""
    window = decode_window(sample.steps, cell.batch)
    return stats.median([step.duration_s for step in sample.steps[window.start : window.stop]])


def _base_differences(timed: Sequence[tuple[SampleRecord, float]]) -> list[float]:
    """ln(first / second) of the two base boots of each block that has both."""
    blocks: dict[int, list[float]] = defaultdict(list)
    for sample, seconds in sorted(timed, key=lambda item: item[0].position):
        if sample.arm == "base":
            blocks[sample.block].append(math.log(seconds))
    return [boots[0] - boots[1] for _, boots in sorted(blocks.items()) if len(boots) == 2]


def _pair_logs(samples: Sequence[SampleRecord], cell: Cell) -> list[float]:
    """ln(base / candidate) per pair: positions (0, 1) and (3, 2) of each block."""
    blocks: dict[int, dict[int, tuple[str, float]]] = defaultdict(dict)
    for sample in samples:
        blocks[sample.block][sample.position] = (sample.arm, step_seconds(sample, cell))
    logs = []
    for _, members in sorted(blocks.items()):
        for outer, inner in ((0, 1), (3, 2)):
            if outer in members and inner in members:
                by_arm = dict((members[outer], members[inner]))
                if len(by_arm) == 2:
                    logs.append(math.log(by_arm["base"] / by_arm["candidate"]))
    return logs


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


def _sentence(case: Case, cells: Sequence[tuple[Cell, Verdict]]) -> Verdict:
    speed = case.claim.speed
    margin = 1 - speed.slower_margin_percent / 100
    holds: list[str] = []
    broken: list[str] = []
    open_: list[str] = []
    for cell, verdict in cells:
        must_be_faster = speed.sentence is Sentence.FASTER_EVERYWHERE or (
            cell.batch in speed.faster_batches
        )
        if verdict.lower is None or verdict.upper is None:
            failed = verdict.state is State.NOT_EXERCISED
            (broken if failed else open_).append(f"{cell.id} {verdict.state}")
        elif must_be_faster:
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
    return Verdict(
        rule="speed",
        cell="sentence",
        state=state,
        reason="OK" if state is State.PASS else "SPD-SENTENCE",
        detail=f"'{words}' over {len(cells)} cells" + (f": {named}" if named else " holds"),
        n=len(cells),
        next="" if state is State.PASS else case.reproduce("perf"),
    )


RULES = (Rule("speed", "perf", judge),)
