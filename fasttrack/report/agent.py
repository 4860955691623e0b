"""The section about replayed agent traffic. Read by `build`.

Numbers stand only beside replays that count: what the rule refused is told in words.
"""

from __future__ import annotations

from fasttrack.bundle.reader import Bundle
from fasttrack.perf.agent.measure import label, measure
from fasttrack.report.model import DETAIL, Section, clean, interval, number, table, times
from fasttrack.report.tally import Tally
from fasttrack.schema import AgentRecord, State

MOST_ROWS = 80
TITLE = "Agent traffic"
COLUMNS = (
    "Trees at once", "Arm", "Session", "Requests", "Interactivity P50", "P90 (slow tail)",
    "TTFT P50 ms", "TTFT P90 ms", "TPOT P50 ms", "Cache hits", "Output tok/s",
)  # fmt: skip


def section(bundle: Bundle, tally: Tally) -> Section:
    """What was replayed, whether it counts, and every session's numbers."""
    verdicts = [v for v in bundle.verdicts if v.rule == "agent"]
    if not verdicts:
        return Section(TITLE, ("No agent traffic was replayed by this run.",))
    counting = {v.cell for v in verdicts if v.state is State.PASS}
    judged = [
        (v.cell, v.state.value, times(v.estimate), interval(v), v.n, v.detail) for v in verdicts
    ]
    shown = [
        table(("Cell", "State", "Interactivity P50", "Interval", "n", DETAIL), judged, MOST_ROWS)
    ]
    rows = [_row(record) for record in tally.replays if record.cell in counting]
    if rows:
        shown.append(table(COLUMNS, rows, MOST_ROWS))
    names = sorted({label(record.traces_sha256) for record in tally.replays}) or [""]
    note = (
        f"{', '.join(names)} replay: recorded trees of conversations with tool stalls, sub-agents "
        "and reused prefixes, their words made up, through aiperf against the engine's own server; "
        "fixed work, the same bytes in both arms, a fresh server per session. It is no AgentX "
        "submission. Interactivity is 1000 / TPOT in tokens per second and user; its P90 is the "
        "slow tail, 1000 / P90 of TPOT. Tails of so few requests are told and not judged."
    )
    traces = sorted({f"{r.traces} (sha256 {r.traces_sha256[:12]})" for r in tally.replays})
    told = f"Traces: {'; '.join(traces)}." if traces else "No session replayed them."
    return Section(TITLE, (clean(note, 800), clean(told, 400)), tuple(shown), brief=True)


def _row(record: AgentRecord) -> tuple[object, ...]:
    seen = measure(record)
    return (
        record.concurrency,
        record.arm,
        record.session,
        seen.requests,
        number(seen.interactivity_p50),
        number(seen.interactivity_p90),
        f"{seen.ttft_p50_ms:,.0f}",
        f"{seen.ttft_p90_ms:,.0f}",
        number(seen.tpot_p50_ms),
        f"{seen.hit_rate:.1%}",
        number(seen.output_tokens_per_s),
    )
