"""Replays of agent traffic that hide work."""

from __future__ import annotations

from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    State,
)
from spoilt.cheat import Cheat


def replays(
    name: str, reason: str, says: str = "", state: State = State.INVALID, change: Any = None,
    **also: Any,
) -> Cheat:  # fmt: skip
    """The candidate's replays spoilt: `change` gives fields of their turns, `also` of the rest."""
    records = zoo.retold(lambda r: r.arm == "candidate", change or (lambda turn: {}), **also)
    return Cheat(name, records, "agent/concurrency=1", state, reason, says, {"agent": {}})


def failed(turn: Any) -> dict[str, Any]:
    """The longest prompt is refused."""
    refused = {"error": "HTTP 400: too long", "output_tokens": None, "arrivals": ()}
    return refused if (turn.trace, turn.turn) == ("mend", 2) else {}


AGENT = (
    replays("no_client_no_replay", "AGT-CLIENT", "pip install", State.MISSING,
            status="no_client", message="pip install aiperf", turns=()),
    replays("no_server_no_replay", "AGT-SERVER", "no server", State.MISSING,
            status="no_server", message="the engine has no server", turns=()),
    replays("server_died", "AGT-FAILED", "ENG-003", status="died", message="ENG-003: killed"),
    replays("replays_other_traces", "AGT-TRACES", traces_sha256="8" * 64),
    replays("refuses_long_prompts", "AGT-REQUESTS", "5 of 6 requests", change=failed),
    replays("counts_tokens_nobody_made", "AGT-COUNTS", "generated_tokens",
            counters={"requests": 6, "prompt_tokens": 2206, "generated_tokens": 200,
                      "cached_tokens": 672}),
    replays("remembers_prefixes_of_others", "AGT-CACHE", "the candidate's",
            change=lambda turn: {"cached_tokens": (turn.cached_tokens or 0) + 8 * turn.turn * 8}),
    replays("hands_out_answers_at_once", "AGT-TIMES", "at once",
            change=lambda turn: {"arrivals": ((9.0, 1), (9.0, turn.output_tokens))}),
    Cheat("slower_agents", zoo.agent_run(speedup=0.8), "agent/concurrency=1/interactivity",
          State.SLOWER, "SPD-SLOWER", "slow tail", {"agent": {}}),
    Cheat("agents_left_out", zoo.honest_run(), "agent/concurrency=1", State.MISSING, "NO-RECORDS",
          claim={"agent": {}}),
)  # fmt: skip
