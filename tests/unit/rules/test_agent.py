"""Protects readers from agent traffic that was not replayed as it is told: what spoils a replay is
named, an honest one counts, and tails are the slow ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.perf.agent.measure import OFFICIAL, STYLE, label, measure, tpot_ms
from fasttrack.rules import agent
from fasttrack.schema import (
    AgentRecord,
    AgentTurn,
    MonitorRecord,
    PathRecord,
    Record,
    SessionRecord,
    State,
    Tier,
    Verdict,
)

CLAIM = zoo.claim(agent={})
CELL = "agent/concurrency=1"
INTERACTIVITY = f"{CELL}/interactivity"


def judge(records: Sequence[Record], **run: Any) -> dict[str, Verdict]:
    """Verdicts of the rule by cell."""
    return {v.cell: v for v in agent.judge(zoo.case(records, CLAIM, **run))}


def one_arm(record: AgentRecord) -> bool:
    """The candidate's replays."""
    return record.arm == "candidate"


def nothing(turn: AgentTurn) -> dict[str, Any]:
    """No change."""
    return {}


def of(trace: str, turn: int, **changes: Any) -> Callable[[AgentTurn], dict[str, Any]]:
    """Changes of one request."""
    return lambda one: changes if (one.conversation, one.turn) == (trace, turn) else {}


def test_an_honest_replay_counts_and_is_compared() -> None:
    verdicts = judge(zoo.agent_run(speedup=1.2, blocks=2))
    assert {cell: v.state for cell, v in verdicts.items()} == {
        CELL: State.PASS,
        INTERACTIVITY: State.FASTER,
    }
    told = verdicts[INTERACTIVITY]
    assert told.n == 4
    assert told.estimate == pytest.approx(1.2, rel=0.02)
    assert not told.deciding
    assert told.detail.startswith(STYLE)
    assert verdicts[CELL].detail.startswith(STYLE)


def test_equal_arms_are_not_called_different() -> None:
    for seed in range(8):
        told = judge(zoo.agent_run(speedup=1.0, blocks=2, seed=seed))[INTERACTIVITY]
        assert told.state in (State.EQUIVALENT, State.INCONCLUSIVE)


def test_a_proven_loss_decides() -> None:
    told = judge(zoo.agent_run(speedup=0.8, blocks=2))[INTERACTIVITY]
    assert (told.state, told.deciding) == (State.SLOWER, True)


def test_one_block_describes_and_judges_nothing() -> None:
    told = judge(zoo.agent_run(blocks=1))[INTERACTIVITY]
    assert (told.state, told.reason, told.deciding) == (State.INCONCLUSIVE, "AGT-FEW", False)
    assert told.lower is None and told.upper is None
    assert "described, not judged" in told.detail


def test_smoke_leaves_it_out_unless_it_is_asked_for() -> None:
    records = zoo.agent_run()
    assert judge(records, tier=Tier.SMOKE) == {}
    assert judge(records, tier=Tier.SMOKE, agent=True)[CELL].state is State.PASS
    assert judge(records, tier=Tier.SMOKE, agent=True)[CELL].next == ""


def test_planned_and_not_replayed_is_missing() -> None:
    (told,) = judge(zoo.honest_run()).values()
    assert (told.state, told.reason, told.deciding) == (State.MISSING, "NO-RECORDS", True)


def test_other_cells_than_the_authors_choice_are_not_judged() -> None:
    assert judge(zoo.agent_run(), cell="decode/*") == {}


SPOILT: dict[str, tuple[str, str, list[Record]]] = {
    "a client that is not installed": (
        "AGT-CLIENT", "pip install",
        zoo.retold(one_arm, nothing, status="no_client", message="pip install aiperf", turns=()),
    ),
    "an engine without a server": (
        "AGT-SERVER", "has no",
        zoo.retold(one_arm, nothing, status="no_server", message="fake has no server", turns=()),
    ),
    "a server that died": (
        "AGT-FAILED", "ENG-003",
        zoo.retold(one_arm, nothing, status="died", message="ENG-003: the server ended"),
    ),
    "a client that left nothing": (
        "AGT-FAILED", "left no records",
        zoo.retold(one_arm, nothing, status="failed", message="aiperf left no records", turns=()),
    ),
    "other traces in one arm": (
        "AGT-TRACES", "different traces", zoo.retold(one_arm, nothing, traces_sha256="8" * 64),
    ),
    "a prompt that does not fit, behind exit status 0": (
        "AGT-REQUESTS", "status 0 all the same",
        zoo.retold(
            one_arm, of("mend", 2, error="HTTP 400: too long", output_tokens=None, arrivals=())
        ),
    ),
    "a request that is left out of the records": (
        "AGT-REQUESTS", "5 of 6 requests",
        [
            r.model_copy(update={"turns": r.turns[:-1], "counters": zoo.totals(r.turns[:-1])})
            if isinstance(r, AgentRecord) and r.arm == "candidate" else r
            for r in zoo.agent_run()
        ],
    ),
    "a request that is told twice instead of another": (
        "AGT-REQUESTS", "twice",
        [
            r.model_copy(update={"turns": [*r.turns[:-1], r.turns[0]]})
            if isinstance(r, AgentRecord) and r.arm == "candidate" else r
            for r in zoo.agent_run()
        ],
    ),
    "an answer that ends early": (
        "AGT-REQUESTS", "not as long",
        zoo.retold(one_arm, of("ask", 1, output_tokens=3, arrivals=((1.0, 1), (9.0, 3)))),
    ),
    "prompts that are cut": (
        "AGT-REQUESTS", "prompt tokens were sent",
        zoo.retold(one_arm, lambda turn: {"input_tokens": 64}),
    ),
    "a server that counts fewer tokens": (
        "AGT-COUNTS", "generated_tokens",
        [
            r.model_copy(update={"counters": {**r.counters, "generated_tokens": 90}})
            if isinstance(r, AgentRecord) else r
            for r in zoo.agent_run()
        ],
    ),
    "a server that does not count": (
        "AGT-COUNTS", "the server nothing", zoo.retold(one_arm, nothing, counters={}),
    ),
    "answers that do not say what was cached": (
        "AGT-COUNTS", "told no cached_tokens",
        zoo.retold(one_arm, lambda turn: {"cached_tokens": None}),
    ),
    "other prompts in one arm": (
        "VAL-PROMPTS", "other prompts", zoo.retold(one_arm, of("ask", 0, prompt_sha256="9" * 64)),
    ),
    "prefixes that only one arm finds": (
        "AGT-CACHE", "the candidate's",
        zoo.retold(one_arm, of("mend", 1, cached_tokens=320)),
    ),
    "a cache that is warm before the first request": (
        "AGT-CACHE", "before anybody had asked",
        zoo.retold(lambda record: True, of("mend", 0, cached_tokens=128)),
    ),
    "tokens that come at once": (
        "AGT-TIMES", "at once", zoo.retold(one_arm, of("ask", 0, arrivals=((5.0, 1), (5.0, 20)))),
    ),
    "packets out of order": (
        "AGT-TIMES", "out of order",
        zoo.retold(one_arm, of("ask", 0, arrivals=((9.0, 1), (5.0, 20)))),
    ),
    "packets without all tokens": (
        "AGT-TIMES", "of 20 tokens",
        zoo.retold(one_arm, of("ask", 0, arrivals=((5.0, 1), (50.0, 10)))),
    ),
    "tokens behind the end of the answer": (
        "AGT-TIMES", "had ended", zoo.retold(one_arm, of("ask", 0, latency_ms=20.0)),
    ),
    "answers longer than the harness's clock": (
        "AGT-TIMES", "harness's clock", zoo.retold(one_arm, nothing, call_s=0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_replay_is_refused_for_its_own_reason(name: str) -> None:
    reason, says, records = SPOILT[name]
    (told,) = judge(records).values()
    expected = State.MISSING if reason in ("AGT-CLIENT", "AGT-SERVER") else State.INVALID
    assert (told.cell, told.state, told.reason, told.deciding) == (CELL, expected, reason, True)
    assert says in told.detail
    assert "fasttrack validate" in told.next


def test_traces_of_another_digest_than_the_claims_are_refused() -> None:
    pinned = zoo.claim(agent={"sha256": "1" * 64})
    (told,) = agent.judge(zoo.case(zoo.agent_run(), pinned))
    assert told.reason == "AGT-TRACES"


def test_a_shared_machine_is_refused() -> None:
    busy = {"foreign_cpu_share": 0.6}
    records = zoo.changed(
        zoo.agent_run(), MonitorRecord, lambda r: "agent" in r.session, values=busy
    )
    real = CLAIM.targets["lab"].model_copy(update={"engine": "vllm"})
    on_a_machine = CLAIM.model_copy(update={"targets": {"lab": real}})
    (told,) = agent.judge(zoo.case(records, on_a_machine))
    assert (told.state, told.reason) == (State.INVALID, "VAL-MACHINE")


def test_another_build_in_one_arm_is_refused() -> None:
    records = zoo.changed(
        zoo.agent_run(),
        SessionRecord,
        lambda r: r.variant == "agent" and r.arm == "candidate",
        fingerprint={"engine": "other", "timer": "perf_counter"},
    )
    (told,) = judge(records).values()
    assert told.reason == "VAL-ENGINE"


def test_a_path_that_never_ran_is_not_exercised() -> None:
    slow = [zoo.path_step("base", 1, 0)]
    records = zoo.changed(
        zoo.agent_run(),
        PathRecord,
        lambda r: r.cell == CELL and r.arm == "candidate",
        steps=slow,
        scheduled=((1, 0),),
    )
    (told,) = judge(records).values()
    assert (told.state, told.reason) == (State.NOT_EXERCISED, "PATH-NONE")


def test_one_arm_alone_is_missing() -> None:
    records = [
        r for r in zoo.agent_run() if not (isinstance(r, AgentRecord) and r.arm == "candidate")
    ]
    (told,) = judge(records).values()
    assert (told.state, told.reason) == (State.MISSING, "NO-RECORDS")


def replayed(tpots: Sequence[float]) -> AgentRecord:
    """A replay whose answers have these mean times between tokens."""
    (turn, *_) = zoo.agent_turns()
    turns = [
        turn.model_copy(
            update={"turn": at, "arrivals": ((10.0, 1), (10.0 + 4 * ms, 5)), "output_tokens": 5}
        )
        for at, ms in enumerate(tpots)
    ]
    return zoo.replay("base", "one", 0, 0, turns)


def test_p90_interactivity_is_the_slow_tail() -> None:
    made = measure(replayed([10.0] * 9 + [100.0] * 2))
    assert made.interactivity_p50 == pytest.approx(100.0)
    assert made.interactivity_p90 == pytest.approx(10.0)
    assert made.interactivity_p90 == pytest.approx(1000 / made.tpot_p90_ms)


def test_a_first_packet_of_several_tokens_is_no_gap() -> None:
    (turn, *_) = zoo.agent_turns()
    chunked = turn.model_copy(update={"arrivals": ((10.0, 4), (50.0, 8))})
    assert tpot_ms(chunked) == pytest.approx(10.0)


def test_nothing_is_called_the_official_corpus_without_its_digest() -> None:
    assert not OFFICIAL
    assert label("7" * 64) == "AgentX-style"
