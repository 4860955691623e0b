"""Proofs of the path that do not rest on its own log: names, watermark, caches, alternation, code.

Each compares what the harness saw in both arms in the path stage; base is the control. A proof that
the claim makes impossible, by naming neither entry nor names, is INCONCLUSIVE and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from fasttrack import ranges
from fasttrack.rules.base import Case, Finding, R, Rule, missing, path_verdict
from fasttrack.rules.drift import band, drift, outside
from fasttrack.schema import (
    CodeRecord,
    PathRecord,
    State,
    StateRecord,
    Target,
    TraceRecord,
    TwinAnswer,
    TwinRecord,
    Verdict,
)

STAGE = "path"
LEAST_CHANGES = 6
"""Changes of path that an alternation must show."""
LEAST_COMPARED = 2
"""Tokens that an answer and its twin must share: the first is a prefill's, which is stock's."""
MOST_NAMED = 3
UNDECLARED = "PATH-UNDECLARED"


def judge(case: Case) -> Iterator[Verdict]:
    """One verdict per proof, and per kind of work where the proof is made for each."""
    for kind in kinds_of(case.target):
        yield from _each(case, f"path/{kind}/trace", TraceRecord, _trace)
        yield from _each(case, f"path/{kind}/watermark", TwinRecord, _watermark)
    yield from _each(case, "path/state", StateRecord, _state)
    yield from _each(case, "path/alternation", TwinRecord, _alternation)
    if "kernels" in case.run.stages and case.run.cell is None:
        yield _code(case)


def kinds_of(target: Target) -> list[str]:
    """Kinds of work that the stage looks at, as it names them."""
    batch = target.grid.batch
    return ["features", "evals", *(f"perf/batch={b}" for b in sorted({min(batch), max(batch)}))]


Look = Callable[[Case, R, R, PathRecord], Finding]


def _each(case: Case, cell: str, kind: type[R], look: Look[R]) -> Iterator[Verdict]:
    """Of each rank, where a proof is made for each: one that does not hold speaks for all."""
    found = {
        (getattr(r, "arm", ""), getattr(r, "rank", 0)): r
        for r in case.records(kind)
        if getattr(r, "cell", "") == cell
    }
    ranks = sorted(rank for arm, rank in found if arm == "candidate")
    controls = sorted(rank for arm, rank in found if arm == "base")
    log = next(
        (r for r in case.records(PathRecord) if r.cell == cell and r.arm == "candidate"), None
    )
    if not ranks or not ranks == controls == list(range(len(ranks))) or log is None:
        yield missing("path", cell, case, STAGE)
        return
    told = [look(case, found["base", rank], found["candidate", rank], log) for rank in ranks]
    worst = min(ranks, key=lambda rank: _ORDER.get(told[rank][0], 1))
    state, reason, detail = told[worst]
    if len(ranks) > 1:
        detail = (
            f"{len(ranks)} ranks: {detail}" if state is State.PASS else f"rank {worst}: {detail}"
        )
    yield path_verdict(case, STAGE, cell, (state, reason, detail))


_ORDER = {State.FAIL: 0, State.PASS: 2}
"""What one rank's finding means for all: a failure first, then whatever decides nothing."""


def _specialised(log: PathRecord) -> int:
    """Specialised steps that the scheduler knows of."""
    told = zip(log.scheduled, log.steps, strict=False)
    return sum(step.path == "specialised" for _, step in told)


def _calls(case: Case, calls: int | None, log: PathRecord) -> str:
    """How the count of entry calls contradicts the log; empty if it does not."""
    steps = _specialised(log)
    if calls is None or calls == steps:
        return ""
    return f"the log tells {steps} specialised steps, {case.claim.plugin.entry} was called {calls}x"


def _trace(case: Case, base: TraceRecord, mine: TraceRecord, log: PathRecord) -> Finding:
    """Decode steps show the declared names, and not stock's."""
    if not base.decode_steps or not mine.decode_steps or not base.most or not mine.most:
        return State.NOT_EXERCISED, "PATH-NONE", "no decode step was traced in both arms"
    if not _specialised(log):
        return State.NOT_EXERCISED, "PATH-NONE", "no traced step is specialised by its log"
    told = _calls(case, mine.entry_calls, log)
    if not told and base.entry_calls:
        told = f"base called {case.claim.plugin.entry} {base.entry_calls}x"
    if not told and dict(mine.most) == dict(base.most):
        told = "its decode steps show what base's show, name by name and count by count"
    declared = case.target.trace
    for pattern in declared.shows:
        if not told and not _matches(mine.least, pattern):
            told = f"{pattern} is not seen in every decode step"
        elsewhere = [*_matches(base.most, pattern), *_matches(mine.prefill, pattern)]
        if not told and elsewhere:
            told = f"{elsewhere[0]} is also seen in steps of stock"
    blind = ""
    for pattern in declared.hides:
        if not _matches(base.least, pattern):
            blind = pattern
        seen = _matches(mine.most, pattern)
        if not told and seen:
            told = f"{seen[0]} of stock is seen {mine.most[seen[0]]}x in a specialised step"
    if told:
        return State.FAIL, "PATH-TRACE", told
    if blind:
        return State.INSENSITIVE, UNDECLARED, f"stock's decode steps never show {blind}"
    if not declared.shows and not declared.hides:
        return (
            State.INCONCLUSIVE,
            UNDECLARED,
            f"[targets.{case.run.target}.trace] names nothing to tell the paths apart",
        )
    gone = sum(n for name, n in base.most.items() if name not in mine.most)
    return (
        State.PASS,
        "OK",
        f"{mine.decode_steps} decode steps of {sum(mine.most.values())} events, base's of "
        f"{sum(base.most.values())}; {gone} of those have names that are gone",
    )


def _matches(names: Iterable[str], pattern: str) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]


def _watermark(case: Case, base: TwinRecord, mine: TwinRecord, log: PathRecord) -> Finding:
    """With the entry's result a constant, answers change where specialised steps made them."""
    if case.claim.plugin.entry is None:
        return State.INCONCLUSIVE, UNDECLARED, "[plugin].entry names nothing to replace"
    if not _specialised(log):
        return State.NOT_EXERCISED, "PATH-NONE", "no watermarked step is specialised by its log"
    if not mine.plain or len(mine.plain) != len(mine.changed):
        return State.MISSING, "NO-RECORDS", "no pairs of answers"
    pairs = list(zip(mine.plain, mine.changed, strict=True))
    told = _calls(case, mine.entry_calls, log)
    if not told and any(_ids(a) != _ids(b) for a, b in zip(base.plain, base.changed, strict=False)):
        told = "answers of base change too: the replaced code serves stock"
    if not told and any(_ids(a)[:1] != _ids(b)[:1] for a, b in pairs):
        told = "a first token changes, which a stock step makes"
    same = sum(_ids(a) == _ids(b) for a, b in pairs)
    if not told and same:
        told = f"{same} of {len(pairs)} answers do not change: something else computes them"
    if told:
        return State.FAIL, "PATH-WATERMARK", told
    return (
        State.PASS,
        "OK",
        f"all {len(pairs)} answers change after their first token; base's do not",
    )


def _ids(answer: TwinAnswer) -> list[int]:
    return list(answer.token_ids)


def _state(case: Case, base: StateRecord, mine: StateRecord, log: PathRecord) -> Finding:
    """Steps change what their log says, and nothing that is not theirs."""
    problem = mine.problem or base.problem
    if problem:
        return State.INCONCLUSIVE, "PATH-UNWATCHED", problem
    if not _specialised(log):
        return State.NOT_EXERCISED, "PATH-NONE", "no watched step is specialised by its log"
    if not len(mine.steps) == len(log.scheduled) <= len(log.steps):
        return (
            State.FAIL,
            "PATH-MISMATCH",
            f"{len(mine.steps)} steps were watched, the scheduler ran {len(log.scheduled)} and the "
            f"log has {len(log.steps)}",
        )
    for seen, told in zip(mine.steps, log.steps, strict=False):
        where = f"step {told.step} ({told.path})"
        if seen.null and not any(step.null for step in base.steps):
            return State.FAIL, "PATH-NULL-SLOT", f"{where} changed the null block"
        if seen.foreign and not any(step.foreign for step in base.steps):
            others = f"blocks {seen.foreign}"
        elif seen.foreign_rows and not any(step.foreign_rows for step in base.steps):
            others = f"rows {seen.foreign_rows}"
        else:
            others = ""
        if others:
            return State.FAIL, "PATH-FOREIGN-WRITE", f"{where} changed {others}, not its own"
        for name, changed in (("slots", seen.slots), ("rows", seen.rows)):
            logged = [held for key, held in told.wrote.items() if key.endswith(name)]
            try:
                left = ranges.outside(changed, logged)
            except ValueError:
                left = changed
            if left:
                return State.FAIL, "PATH-UNLOGGED-WRITE", f"{where} changed {name} {left} unlogged"
    if not any(step.slots or step.rows for step in mine.steps):
        return State.INSENSITIVE, "PATH-UNWATCHED", "no step was seen to write anything"
    return (
        State.PASS,
        "OK",
        f"{len(mine.steps)} steps, {_specialised(log)} of them specialised, changed what they log; "
        f"{mine.watched_blocks} of {mine.blocks} blocks were watched",
    )


def _alternation(case: Case, base: TwinRecord, mine: TwinRecord, log: PathRecord) -> Finding:
    """Answers stay within stock's own band while stock and specialised steps take turns.

    The second answer is forced along the first: it parts where its own choice would have been
    another token. Where stock parts from itself it was as undecided as the gap there. Of answers
    that were not forced nothing is compared behind their parting, and of a model that parts before
    two tokens nothing is known.
    """
    taken = [step.path for _, step in zip(log.scheduled, log.steps, strict=False)]
    changes = sum(a != b for a, b in pairwise(taken))
    if changes < LEAST_CHANGES:
        return State.NOT_EXERCISED, "PATH-NONE", f"the path changed {changes} times"
    policy = case.policy.quality
    noise = [drift(a, b) for a, b in zip(base.plain, base.changed, strict=False)]
    drifts = [drift(a, b) for a, b in zip(mine.plain, mine.changed, strict=False)]
    if not noise or not drifts or not all(one.compared for one in (*noise, *drifts)):
        return State.MISSING, "NO-RECORDS", "no pairs of answers with log-probabilities"
    stock = band(noise, policy)
    own = [gap for gap in map(_parting, base.plain, base.changed) if math.isfinite(gap)]
    undecided = max(stock.undecided, max(own, default=0.0) + policy.tie_slack)
    parted = [gap for gap in map(_parting, mine.plain, mine.changed) if gap > undecided]
    if parted:
        told = f"{parted[0]:.3g} nats, undecided below {undecided:.3g}"
        return State.FAIL, "PATH-DRIFT", f"an answer parts at a gap of {told}"
    if left := outside(drifts, stock, policy):
        return State.FAIL, "PATH-DRIFT", left
    compared = max(one.compared for one in drifts)
    if compared < LEAST_COMPARED:
        told = f"answers part after {compared} tokens, and so do stock's own"
        return State.INCONCLUSIVE, "PATH-NOISE", told
    moved = max(one.logprob for one in drifts)
    return (
        State.PASS,
        "OK",
        f"the path changed {changes} times; log-probability moved {moved:.2g} nats, stock's own "
        f"{stock.worst:.2g}",
    )


def _parting(one: TwinAnswer, other: TwinAnswer) -> float:
    """Gap where a twin first goes, or would have gone, another way, nats: 0 where it never does,
    infinite where it is unknown."""
    for gap, rank in zip(one.gaps, other.ranks, strict=False):
        if rank != 1:
            return math.inf if gap is None else gap
    return drift(one, other).parting_gap


def _code(case: Case) -> Verdict:
    """The kernel cases ran the compiled code that the engine runs."""
    cell = "path/code"
    records = case.records(CodeRecord)
    engine = [r for r in records if r.stage == STAGE]
    cases = [r for r in records if r.stage == "kernels"]
    if {r.arm for r in engine} != {"base", "candidate"} or not cases:
        return missing("path", cell, case, STAGE)
    runs = _own(engine)
    units = {op: _own([r for r in cases if r.source == op]) for op in case.claim.scope.ops}
    tested = set().union(*units.values())
    names = {digest: name for r in records for digest, name in r.files.items()}
    bypassed = sorted(names[digest] for digest in runs - tested)
    foreign = sorted(op for op, code in units.items() if code and runs and not code & runs)
    if bypassed:
        found: Finding = (
            State.FAIL,
            "PATH-OTHER-CODE",
            f"the engine runs {', '.join(bypassed[:MOST_NAMED])}, which no kernel case ran",
        )
    elif foreign:
        found = (
            State.FAIL,
            "PATH-OTHER-CODE",
            f"the case of {foreign[0]} runs none of the engine's compiled code",
        )
    elif not runs:
        detail = "neither engine nor cases map compiled code of their own; eager code is not told"
        return path_verdict(
            case, STAGE, cell, (State.INSENSITIVE, "PATH-NO-CODE", detail), deciding=False
        )
    else:
        found = State.PASS, "OK", f"all {len(runs)} compiled units of the engine ran in cases"
    return path_verdict(case, STAGE, cell, found)


def _own(records: Sequence[CodeRecord]) -> set[str]:
    """Digests in the candidate's process that stock's has not."""
    mine = {digest for r in records if r.arm == "candidate" for digest in r.files}
    return mine - {digest for r in records if r.arm == "base" for digest in r.files}


RULES = (Rule("path", STAGE, judge),)
