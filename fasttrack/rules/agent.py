"""Agent traffic: whether its replays count, and what they say of interactivity.

A cell is a number of trees at once. It counts if all its sessions did: every planned request was
answered with as many tokens as planned, client and server counted the same, both arms were asked
the same bytes and found as much of them in their prefix caches. The client's exit status and its
own totals are no evidence. Compared is interactivity P50, paired over engine boots as `speed` does;
tails of a few dozen requests are told and never judged. Reads no file and no clock.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from fasttrack import stats
from fasttrack.perf.agent.measure import Measured, hit_rate, label, measure, tpot_ms
from fasttrack.rules import looks
from fasttrack.rules.base import Case, Rule, missing
from fasttrack.rules.validity import engine_problem, machine_problems
from fasttrack.schema import ARMS, AgentRecord, AgentTurn, PathRecord, State, Verdict

Problem = tuple[State, str, str]
"""State, reason and why."""
Replays = Sequence[AgentRecord]
CLOCK_SLACK_MS = 50.0
"""Between the client's clock and the harness's."""
TOTALS: Mapping[str, Callable[[AgentTurn], int | None]] = {
    "requests": lambda turn: 1,
    "prompt_tokens": lambda turn: turn.input_tokens,
    "generated_tokens": lambda turn: turn.output_tokens,
    "cached_tokens": lambda turn: turn.cached_tokens,
}
"""What client and server both count; the names are the server's in `AgentRecord.counters`."""


def judge(case: Case) -> Iterator[Verdict]:
    """For every planned cell whether it counts, and if so its interactivity."""
    traffic = case.claim.agent_traffic(case.run.target, case.run.tier, case.run.agent)
    for cell in traffic.cells if traffic is not None else ():
        if case.wants(cell):
            yield from _cell(case, cell)


def _cell(case: Case, cell: str) -> Iterator[Verdict]:
    replays = [record for record in case.records(AgentRecord) if record.cell == cell]
    if not replays:
        yield missing("agent", cell, case, "perf", "no session replayed agent traffic")
        return
    problem = _problem(case, replays)
    state, reason, detail = problem or (State.PASS, "OK", _told(replays))
    yield Verdict(
        rule="agent",
        cell=cell,
        state=state,
        reason=reason,
        detail=f"{label(replays[0].traces_sha256)}: {detail}",
        n=len(replays),
        next="" if problem is None else _next(case, cell),
    )
    if problem is None:
        yield _compared(case, cell, replays)


def _next(case: Case, cell: str) -> str:
    asked = " --agent" if case.run.agent else ""
    return case.reproduce("perf", cell) + asked


# Whether the replays of a cell count


def _problem(case: Case, replays: Replays) -> Problem | None:
    """The first thing that spoils a cell; None if it counts. Reads no duration before the last."""
    if {replay.arm for replay in replays} != set(ARMS):
        return State.MISSING, "NO-RECORDS", f"only {replays[0].arm} replayed it"
    lacking = next((r for r in replays if r.status in ("no_client", "no_server")), None)
    if lacking is not None:
        reason = "AGT-CLIENT" if lacking.status == "no_client" else "AGT-SERVER"
        return State.MISSING, reason, lacking.message
    for replay in replays:
        if replay.status != "ok":
            return State.INVALID, "AGT-FAILED", f"{replay.session}: {replay.message}"
    checks: tuple[tuple[str, Callable[[], str]], ...] = (
        ("VAL-ENGINE", lambda: engine_problem(case)),
        ("AGT-TRACES", lambda: _traces(case, replays)),
        ("AGT-REQUESTS", lambda: _first(replays, _requests)),
        ("AGT-COUNTS", lambda: _first(replays, _counts)),
        ("VAL-PROMPTS", lambda: _prompts(replays)),
        ("AGT-CACHE", lambda: _cache(case, replays)),
        ("AGT-TIMES", lambda: _first(replays, _times)),
        ("VAL-MACHINE", lambda: _machine(case, replays)),
    )
    for reason, look in checks:
        why = look()
        if why:
            return State.INVALID, reason, why
    unused = [r.session for r in replays if r.arm == "candidate" and not _exercised(case, r)]
    if unused:
        return State.NOT_EXERCISED, "PATH-NONE", f"{unused[0]}: no step ran the specialised path"
    return None


def _first(replays: Replays, look: Callable[[AgentRecord], str]) -> str:
    found = ((replay.session, look(replay)) for replay in replays)
    return next((f"{session}: {why}" for session, why in found if why), "")


def _traces(case: Case, replays: Replays) -> str:
    """Whether all sessions replayed the claim's traces."""
    planned = [(r.traces_sha256, [tree.json_value() for tree in r.planned]) for r in replays]
    if any(one != planned[0] for one in planned):
        return "its sessions replayed different traces"
    traffic = case.claim.agent_traffic(case.run.target, case.run.tier, case.run.agent)
    wanted = traffic.sha256 if traffic is not None else None
    if wanted not in (None, replays[0].traces_sha256):
        return f"the traces have the digest {replays[0].traces_sha256[:12]}, not the claim's"
    return ""


def _requests(replay: AgentRecord) -> str:
    """Whether every planned request was answered, in full, once."""
    planned = sum(len(tree.output_tokens) for tree in replay.planned)
    failed = [turn for turn in replay.turns if turn.error]
    answered = len(replay.turns) - len(failed)
    if failed or answered != planned:
        told = Counter(turn.error for turn in failed).most_common(2)
        why = "; ".join(f"{count}x {error}" for error, count in told)
        if replay.exit_status == 0:
            why += f"{'; ' if why else ''}the client ended with status 0 all the same"
        return f"{answered} of {planned} requests were answered" + (f": {why}" if why else "")
    if len({(turn.conversation, turn.turn) for turn in replay.turns}) < planned:
        return "a request was sent twice"
    for tree in replay.planned:
        mine = [turn for turn in replay.turns if turn.trace == tree.trace]
        lengths = Counter(turn.output_tokens for turn in mine)
        if lengths != Counter(tree.output_tokens):
            return f"the answers to {tree.trace} are not as long as its trace says"
        asked = sum(turn.input_tokens or 0 for turn in mine)
        if asked < sum(tree.input_tokens):
            return (
                f"{asked} prompt tokens were sent of {tree.trace}, which has "
                f"{sum(tree.input_tokens)}"
            )
    return ""


def _counts(replay: AgentRecord) -> str:
    """Whether client and server counted the same."""
    for name, of_turn in TOTALS.items():
        mine = [of_turn(turn) for turn in replay.turns]
        if None in mine:
            return f"the server told no {name} with an answer"
        server = replay.counters.get(name)
        client = sum(value or 0 for value in mine)
        if server != client:
            told = "nothing" if server is None else server
            return f"{name}: the client counts {client}, the server {told}"
    return ""


def _prompts(replays: Replays) -> str:
    """Whether every session was asked the same bytes."""
    asked = [
        {(turn.conversation, turn.turn): turn.prompt_sha256 for turn in replay.turns}
        for replay in replays
    ]
    for replay, one in zip(replays, asked, strict=True):
        if one != asked[0]:
            return f"{replay.session} was asked other prompts than {replays[0].session}"
    return ""


def _cache(case: Case, replays: Replays) -> str:
    """Whether prefixes were cached alike: cold at the start, as many hits in both arms."""
    for replay in replays:
        first = min(replay.turns, key=lambda turn: turn.start_ms, default=None)
        if first is not None and first.cached_tokens:
            return (
                f"{replay.session}: {first.cached_tokens} tokens of the first prompt were cached "
                "before anybody had asked"
            )
    rates = {arm: hit_rate([r for r in replays if r.arm == arm]) for arm in ARMS}
    if abs(rates["base"] - rates["candidate"]) > case.policy.speed.cache_margin:
        return (
            f"the prefix cache held {rates['base']:.1%} of base's prompt tokens, "
            f"{rates['candidate']:.1%} of the candidate's"
        )
    return ""


def _times(replay: AgentRecord) -> str:
    """Whether token times can be believed: there, in order, and within the harness's own clock."""
    for turn in replay.turns:
        where = f"{turn.conversation} turn {turn.turn}"
        at = [ms for ms, _ in turn.arrivals]
        counts = [count for _, count in turn.arrivals]
        if not counts or counts[-1] != turn.output_tokens:
            some = counts[-1] if counts else "no"
            return f"{where}: its packets bring {some} of {turn.output_tokens} tokens"
        if (turn.output_tokens or 0) > 1 and not tpot_ms(turn):
            return f"{where}: all its tokens came at once"
        if at != sorted(at) or at[0] <= 0 or counts != sorted(set(counts)):
            return f"{where}: its packets are out of order"
        if turn.latency_ms is not None and at[-1] > turn.latency_ms + CLOCK_SLACK_MS:
            return f"{where}: a token came after the answer had ended"
    if all(tpot_ms(turn) is None for turn in replay.turns):
        return "no answer has two tokens"
    ended = max(turn.start_ms + turn.arrivals[-1][0] for turn in replay.turns)
    if replay.call_s is None or ended > 1000 * replay.call_s + CLOCK_SLACK_MS:
        clock = f"{replay.call_s or 0:.3g} s of the harness's clock"
        return f"answers of {ended / 1000:.3g} s in {clock}"
    return ""


def _machine(case: Case, replays: Replays) -> str:
    found = machine_problems(case)
    return next((f"{r.session}: {found[r.session]}" for r in replays if found[r.session]), "")


def _exercised(case: Case, replay: AgentRecord) -> bool:
    return any(
        step.path == "specialised"
        for record in case.records(PathRecord)
        if (record.session, record.cell) == (replay.session, replay.cell)
        for step in record.steps
    )


def _told(replays: Replays) -> str:
    one = replays[0]
    total = {name: sum(of(turn) or 0 for turn in one.turns) for name, of in TOTALS.items()}
    subagents = sum(tree.subagents for tree in one.planned)
    return (
        f"{one.client} replayed {len(one.planned)} trees with {subagents} sub-agents in each of "
        f"{len(replays)} sessions; client and server agree on {total['requests']} requests, "
        f"{total['prompt_tokens']} prompt tokens of which {total['cached_tokens']} were cached in "
        f"{one.session}, and {total['generated_tokens']} answer tokens"
    )


# What they say


def _compared(case: Case, cell: str, replays: Replays) -> Verdict:
    """Interactivity P50 of both arms: their ratio is base's TPOT over the candidate's."""
    seen = {replay.session: measure(replay) for replay in replays}
    pairs = looks.paired(
        looks.Boot(r.block, r.position, r.arm, seen[r.session].tpot_p50_ms) for r in replays
    )
    noise = _noise(replays, seen)
    look = looks.decide(pairs, noise, case.policy.speed, claimed=False)
    middle: dict[str, Sequence[Measured]] = {
        arm: [seen[r.session] for r in replays if r.arm == arm] for arm in ARMS
    }
    detail = _numbers(label(replays[0].traces_sha256), middle)
    cost = {arm: stats.median([one.tpot_p50_ms for one in middle[arm]]) for arm in ARMS}
    name = f"{cell}/interactivity"
    if look is None:
        needed = case.policy.speed.look_pairs[0]
        return Verdict(
            rule="agent",
            cell=name,
            state=State.INCONCLUSIVE,
            reason="AGT-FEW",
            detail=f"{detail}; described, not judged: {len(pairs)} pairs of boots of {needed}",
            deciding=False,
            estimate=math.exp(stats.mean([pair.log for pair in pairs])) if pairs else None,
            unit="x",
            n=len(pairs),
            base_ms=cost["base"],
            candidate_ms=cost["candidate"],
            next=_next(case, cell),
        )
    margin = math.log1p(-case.claim.speed.slower_margin_percent / 100)
    return Verdict(
        rule="agent",
        cell=name,
        state=look.state,
        reason=look.reason,
        detail=f"{detail}; look {look.number} of {len(case.policy.speed.look_pairs)}",
        # A gain here proves no sentence about cells; a proven loss breaks any.
        deciding=look.state is State.SLOWER and look.interval.upper < margin,
        estimate=math.exp(look.interval.estimate),
        lower=math.exp(look.interval.lower),
        upper=math.exp(look.interval.upper),
        unit="x",
        n=look.interval.n,
        floor=math.exp(look.floor),
        base_ms=cost["base"],
        candidate_ms=cost["candidate"],
        next=_next(case, cell),
    )


def _noise(replays: Replays, seen: Mapping[str, Measured]) -> dict[int, float]:
    """Base against base in TPOT P50 per block: size of the difference of logarithms."""
    blocks: dict[int, list[float]] = defaultdict(list)
    for replay in sorted(replays, key=lambda replay: replay.position):
        if replay.arm == "base":
            blocks[replay.block].append(math.log(seen[replay.session].tpot_p50_ms))
    return {block: abs(own[0] - own[1]) for block, own in blocks.items() if len(own) == 2}


def _numbers(name: str, middle: Mapping[str, Sequence[Measured]]) -> str:
    """Medians over sessions, stock's first."""

    def both(value: Callable[[Measured], float], form: str = ".3g") -> str:
        told = [stats.median([value(one) for one in middle[arm]]) for arm in ARMS]
        return f"{told[0]:{form}} -> {told[1]:{form}}"

    requests = middle["base"][0].tpots
    return (
        f"{name}: interactivity P50 {both(lambda m: m.interactivity_p50)} tokens/s/user, P90 (slow "
        f"tail, 1000 / P90 of TPOT; of {requests} requests, not judged) "
        f"{both(lambda m: m.interactivity_p90)}; "
        f"TTFT P50 {both(lambda m: m.ttft_p50_ms, ',.0f')} ms, "
        f"P90 {both(lambda m: m.ttft_p90_ms, ',.0f')} ms; "
        f"prefix cache hits {both(lambda m: m.hit_rate, '.1%')}; "
        f"{both(lambda m: m.output_tokens_per_s)} output tokens/s"
    )


RULES = (Rule("agent", "perf", judge),)
