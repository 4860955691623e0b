"""Which samples and pairs count, decided before looking at speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fasttrack import stats
from fasttrack.perf.window import PREFILL_ROUNDS, prefill_rounds, window
from fasttrack.rules.base import Case
from fasttrack.rules.looks import PAIRS
from fasttrack.schema import (
    AgentRecord,
    Cell,
    MonitorRecord,
    PathRecord,
    SampleRecord,
    SessionRecord,
)
from fasttrack.schema.record import Scalar

MIN_WINDOW_STEPS = 8
LEAST_SHARE = 0.5
"""Of a call's time on the harness's clock that its engine steps must account for."""
LEAST_WINDOW_SHARE = 0.75
"""Of the window on the harness's clock that its steps must account for."""
CLOCK_JITTER_S = 0.05
"""How much later than its end the harness may learn of a window's begin."""
MOST_DRIFT = 1.5
"""Between the medians of the first and the last third of a steady window."""
SIMULATED_ENGINE = "fake"
"""Its clock is simulated: nothing follows from comparing it with ours."""


def engine_problem(case: Case) -> str:
    """Why the run's sessions are not one engine with one switch; empty if they are.

    Sessions of all stages are compared: evals and perf of different builds prove nothing. Those of
    a variant, booted otherwise on purpose, are compared among themselves.
    """
    first: dict[str, SessionRecord] = {}
    for session in case.records(SessionRecord):
        other = first.setdefault(session.variant, session).fingerprint
        if session.fingerprint != other:
            keys = [
                key
                for key in {*session.fingerprint, *other}
                if session.fingerprint.get(key) != other.get(key)
            ]
            return f"session {session.session} differs in {', '.join(sorted(keys))}"
        if "timer" not in session.fingerprint:
            return f"session {session.session} does not say how it times its steps"
        expected = getattr(case.claim.switch, session.arm)
        if session.switch != expected:
            return f"session {session.session} reports the switch {session.switch!r}"
    return ""


def baseline_problem(case: Case) -> str:
    """Why stock is not what users run; empty if it is, or if the target's `baseline_note` says why.

    On a GPU vLLM's own default replays graphs: in eager mode stock waits for its launches, and any
    path with fewer of them looks fast. Of targets that give evidence.
    """
    if case.target.role != "evidence" or case.target.baseline_note:
        return ""
    for session in case.records(SessionRecord):
        told, measured = session.fingerprint, (session.stage, session.arm) == ("perf", "base")
        if measured and told.get("enforce_eager") and told.get("device", "cpu") != "cpu":
            return (
                f"session {session.session}: stock ran in eager mode on {told['device']}, and no "
                "baseline_note says why"
            )
    return ""


def machine_problems(case: Case) -> dict[str, str]:
    """Why sessions do not count, by their name: whose machine was another, or not left to them.

    Only targets that give evidence need a machine of their own; a simulated engine has none.
    """
    watched = {r.session: r.values for r in case.records(MonitorRecord) if r.stage == "perf"}
    measured: list[SampleRecord | AgentRecord] = [
        *case.records(SampleRecord),
        *case.records(AgentRecord),
    ]
    names = {r.session: r.machine for r in case.records(SessionRecord) if r.stage == "perf"}
    problems = _elsewhere(measured, watched)
    problems |= {name: why for name, why in _moved(measured, names).items() if not problems[name]}
    if case.target.role != "evidence" or case.target.engine == SIMULATED_ENGINE:
        return problems
    return {name: why or _foreign(watched.get(name, {}), case) for name, why in problems.items()}


def _elsewhere(
    samples: Sequence[SampleRecord | AgentRecord], watched: Mapping[str, Mapping[str, Scalar]]
) -> dict[str, str]:
    """Whether sessions ran where those ran with which they are compared.

    A block is of one node: times of two nodes say nothing about the switch. Blocks may be of
    several nodes of one description, as when a node was lost.
    """
    places = {
        sample.session: (watched.get(sample.session, {}).get("node"), sample.block)
        for sample in samples
    }
    machines = {name: watched.get(name, {}).get("machine") for name in places}
    first = next(iter(machines.values()), None)
    problems = dict.fromkeys(places, "")
    for name, (_, block) in places.items():
        if len({node for node, other in places.values() if other == block}) > 1:
            problems[name] = f"the sessions of block {block} ran on several nodes"
        elif machines[name] != first:
            problems[name] = f"it ran on {machines[name]}, the first one on {first}"
    return problems


def _moved(
    samples: Sequence[SampleRecord | AgentRecord], machines: Mapping[str, str]
) -> dict[str, str]:
    """Why sessions of pairs that are of two machines do not count, by their name.

    `machines`: by session; of records that do not tell it nothing is said. A pair of one machine
    counts wherever it is: where a run went on elsewhere, only the base boots of the block in which
    it moved differ by the machine too, which widens the floor.
    """
    at = {(sample.block, sample.position): sample.session for sample in samples}
    problems: dict[str, str] = {}
    for block in {sample.block for sample in samples}:
        for pair in PAIRS:
            names = [at[block, place] for place in sorted(pair) if (block, place) in at]
            where = [machines.get(name, "") for name in names]
            if len(set(where)) > 1:
                told = " and ".join(one or "one that nobody named" for one in where)
                problems |= dict.fromkeys(names, f"its pair ran on two machines, {told}")
    return problems


def _foreign(values: Mapping[str, Scalar], case: Case) -> str:
    share = values.get("foreign_cpu_share")
    if not isinstance(share, float | int):
        return "nobody watched the machine"
    if share > case.policy.speed.max_foreign_cpu_share:
        return f"processes of others used {100 * share:.0f} % of the machine's CPU time"
    if values.get("gpu_foreign_processes"):
        return f"{values['gpu_foreign_processes']:g} processes of others were on the GPUs"
    if values.get("gpu_throttle_bits"):
        return f"GPU clocks were throttled (reasons {values['gpu_throttle_bits']:g})"
    if values.get("gpu_ecc_errors"):
        return f"{values['gpu_ecc_errors']:g} uncorrected memory errors"
    return ""


def problem_of(
    sample: SampleRecord,
    cell: Cell,
    case: Case,
    machine: Mapping[str, str],
    routed: Mapping[int, str],
) -> tuple[str, str]:
    """(reason, why) a sample does not count; empty if it does.

    `machine`: of `machine_problems`; `routed`: of `routing.problems`.
    """
    for reason, why in (
        ("VAL-MACHINE", machine.get(sample.session, "")),
        ("VAL-PROMPTS", prompts_problem(sample, case) or routed.get(cell.context_tokens, "")),
        ("VAL-TOKENS", sample_problem(sample, cell)),
        ("VAL-CLOCK", clock_problem(sample, cell, case)),
        ("VAL-WARM", warmth_problem(sample, cell)),
    ):
        if why:
            return reason, why
    return "", ""


def prompts_problem(sample: SampleRecord, case: Case) -> str:
    """Why the prompts are no real text; empty if they are."""
    if not sample.prompts_sha256 or sample.token_evenness is None:
        return "nothing is known of its prompts"
    wanted = case.target.prompts.sha256 if case.target.prompts else None
    if wanted not in (None, sample.prompt_set_sha256):
        return f"prompts are from another set than the claim's: {sample.prompt_set_sha256[:12]}"
    most = case.policy.speed.max_token_evenness
    if sample.token_evenness > most:
        return (
            f"its prompts are like random tokens: evenness {sample.token_evenness:.3f}, real text "
            f"stays below {most:g}"
        )
    return ""


def warmth_problem(sample: SampleRecord, cell: Cell) -> str:
    """Why the window is no steady state; empty if it is.

    An arm that still compiles, captures or tunes in its window pays in its first steps. The limit
    is far beyond noise, and is the same for both arms.
    """
    if cell.workload != "decode":
        return ""
    chosen = window(sample.steps, cell)
    durations = [step.duration_s for step in sample.steps[chosen.start : chosen.stop]]
    third = len(durations) // 3
    if third == 0:
        return ""
    first, last = stats.median(durations[:third]), stats.median(durations[-third:])
    if not 1 / MOST_DRIFT <= last / first <= MOST_DRIFT:
        return f"steps of {first * 1e3:.3g} ms early in the window, {last * 1e3:.3g} ms late"
    return ""


def sample_problem(sample: SampleRecord, cell: Cell) -> str:
    """Why a sample is not a measurement of its cell; empty if it is. Reads no duration."""
    if sample.completed_requests != sample.planned_requests:
        return f"{sample.completed_requests} of {sample.planned_requests} requests ran"
    lanes = sample.planned_requests
    asked = {"decode": lanes == cell.batch, "prefill": lanes == PREFILL_ROUNDS * cell.batch}
    if not asked.get(cell.workload, lanes >= cell.batch + 2):
        return f"{lanes} requests for batch {cell.batch}"
    if sample.prompt_tokens != lanes * cell.context_tokens:
        return f"{sample.prompt_tokens} prompt tokens instead of the cell's"
    if sample.cached_tokens:
        return f"{sample.cached_tokens} prompt tokens came from the prefix cache"
    return _window_problem(sample, cell) or _count_problem(sample, cell)


def _window_problem(sample: SampleRecord, cell: Cell) -> str:
    chosen = window(sample.steps, cell)
    steps = sample.steps[chosen.start : chosen.stop]
    if cell.workload == "prefill":
        rounds = prefill_rounds(sample.steps, cell.batch * cell.context_tokens)
        if len(rounds) != PREFILL_ROUNDS:
            return f"{len(rounds)} of {PREFILL_ROUNDS} rounds of prefill"
        decoded = sum(step.decode_tokens for step in steps)
        return f"{decoded} tokens were decoded in the window" if decoded else ""
    if len(chosen) < MIN_WINDOW_STEPS:
        return f"only {len(chosen)} steady decode steps"
    if cell.workload == "mixed":
        short = sum(step.decode_tokens != cell.batch for step in steps)
        with_prefill = sum(step.prefill_tokens > 0 for step in steps)
        if short or not 0.2 * len(steps) <= with_prefill <= 0.8 * len(steps):
            return f"{short} of {len(steps)} steps lack lanes, {with_prefill} prefill"
    return ""


def _count_problem(sample: SampleRecord, cell: Cell) -> str:
    """Tokens and contexts, recounted step by step."""
    prefilled = sum(step.prefill_tokens for step in sample.steps)
    if prefilled < sample.prompt_tokens:
        return f"{prefilled} of {sample.prompt_tokens} prompt tokens were prefilled"
    if not len(sample.emitted) == len(sample.contexts) == len(sample.steps):
        return "the engine did not tell tokens and contexts of its steps"
    if sample.output_tokens != sum(sample.emitted):
        return f"{sample.output_tokens} tokens in answers, {sum(sample.emitted)} handed out"
    chosen = window(sample.steps, cell)
    computed = sum(step.decode_tokens for step in sample.steps[chosen.start : chosen.stop])
    told = sum(sample.emitted[chosen.start : chosen.stop])
    # Of an engine that schedules ahead, tokens come a step later than they were scheduled.
    spare = cell.batch if cell.workload == "decode" else sample.planned_requests
    spare *= cell.lane_tokens
    # Drafts need not be accepted; the token behind them is always there.
    fewest = computed // cell.lane_tokens
    if cell.workload != "prefill" and not fewest - spare <= told <= computed + spare:
        return f"{told} tokens handed out by steps that decoded {computed}"
    if cell.workload == "decode":
        context = sample.contexts[chosen.start] / cell.batch
        if context < cell.context_tokens:
            return f"{context:.0f} tokens of context per lane instead of {cell.context_tokens}"
    return ""


def clock_problem(sample: SampleRecord, cell: Cell, case: Case) -> str:
    """Why the engine's step times cannot be believed; empty if they can.

    Steps are timed in the engine's process, where the optimization runs too. It could replace the
    clock, or return from a step before its work is done: then they do not add up to the time that
    passed on the harness's own clock.
    """
    if case.target.engine == SIMULATED_ENGINE:
        return ""
    if sample.call_s is None:
        return "the harness's own clock was not read"
    # An engine that schedules ahead tells two entries of one step with the same times.
    spans = {step.start_s: step.duration_s for step in sample.steps}
    total = sum(spans.values())
    if not LEAST_SHARE * sample.call_s <= total <= 1.01 * sample.call_s:
        return f"steps of {total:.3g} s in a call of {sample.call_s:.3g} s"
    return _marks_problem(sample) if cell.workload == "decode" else ""


def _marks_problem(sample: SampleRecord) -> str:
    """Whether the window took as long on the harness's clock as its steps did on the engine's."""
    if len(sample.marks) != 2:
        return "the harness's clock was not read around the window"
    (first, began), (last, ended) = sample.marks
    spans = {step.start_s: step.duration_s for step in sample.steps[first:last]}
    took, total = ended - began, sum(spans.values())
    if not LEAST_WINDOW_SHARE * took <= total <= 1.01 * took + CLOCK_JITTER_S:
        return f"{last - first} steps of {total:.3g} s in {took:.3g} s of the harness's clock"
    return ""


def exercised(sample: SampleRecord, cell: Cell, paths: Sequence[PathRecord]) -> bool:
    """Whether every pure decode step that counts, of a candidate, ran the specialised path."""
    if cell.workload == "prefill":
        return True
    chosen = window(sample.steps, cell)
    pure = [index for index in chosen if not sample.steps[index].prefill_tokens]
    for record in paths:
        if record.session == sample.session and record.cell == sample.cell:
            steps = list(record.steps)
            return len(steps) >= chosen.stop and all(
                steps[index].path == "specialised" for index in pure
            )
    return False
