"""Agent traffic."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from fasttrack.plan import orders
from fasttrack.schema import (
    AgentRecord,
    AgentTurn,
    Arm,
    MonitorRecord,
    PlannedTree,
    Record,
)
from zoo_records._path import path, session

TREES = (
    PlannedTree(
        trace="mend", input_tokens=(256, 256, 384, 512), output_tokens=(16, 12, 24, 20),
        subagents=1, stall_s=1.0,
    ),
    PlannedTree(
        trace="ask", input_tokens=(320, 448), output_tokens=(20, 12), subagents=0, stall_s=0.4
    ),
)  # fmt: skip
"""The second request of the first tree is its sub-agent's."""
TEMPLATE_TOKENS = 5
"""What the chat template adds to a prompt."""


def agent_turns(tpot_ms: float = 30.0, noise: float = 0.02, seed: int = 0) -> list[AgentTurn]:
    """The requests of one replay, one after the other; every prompt is half cached but the first of
    its conversation."""
    rng = random.Random(f"agent/{seed}")
    made: list[AgentTurn] = []
    clock = 0.0
    for tree in TREES:
        turns: dict[str, int] = {}
        for index, (given, produced) in enumerate(
            zip(tree.input_tokens, tree.output_tokens, strict=True)
        ):
            helper = bool(tree.subagents) and index == 1
            conversation = tree.trace + ("::sa:agent_001" if helper else "")
            turn = turns[conversation] = turns.get(conversation, -1) + 1
            pace = tpot_ms * (1 + abs(rng.gauss(0, noise)))
            ttft = 0.8 * given
            arrivals = [(ttft + pace * at, at + 1) for at in range(produced)]
            made.append(
                AgentTurn(
                    trace=tree.trace,
                    conversation=conversation,
                    turn=turn,
                    depth=int(helper),
                    prompt_sha256=hashlib.sha256(f"{conversation}/{turn}".encode()).hexdigest(),
                    start_ms=clock,
                    latency_ms=arrivals[-1][0],
                    ttft_ms=ttft,
                    itl_ms=pace,
                    arrivals=arrivals,
                    input_tokens=given + TEMPLATE_TOKENS,
                    output_tokens=produced,
                    cached_tokens=given // 2 if turn else 0,
                )
            )
            clock += arrivals[-1][0] + 100.0
    return made


def totals(turns: Sequence[AgentTurn]) -> dict[str, int]:
    """What a server counts of these requests."""
    return {
        "requests": sum(not turn.error for turn in turns),
        "prompt_tokens": sum(turn.input_tokens or 0 for turn in turns),
        "generated_tokens": sum(turn.output_tokens or 0 for turn in turns),
        "cached_tokens": sum(turn.cached_tokens or 0 for turn in turns),
    }


def replay(arm: Arm, name: str, block: int, position: int, turns: Sequence[AgentTurn],
           **changes: Any) -> AgentRecord:  # fmt: skip
    """One replay."""
    return AgentRecord(
        **{
            "session": name,
            "arm": arm,
            "cell": "agent/concurrency=1",
            "block": block,
            "position": position,
            "concurrency": 1,
            "traces": "shipped",
            "traces_sha256": "7" * 64,
            "planned": TREES,
            "status": "ok",
            "client": "aiperf 0.13.0",
            "exit_status": 0,
            "turns": turns,
            "counters": totals(turns),
            "call_s": 60.0,
        }
        | changes
    )


def agent(
    speedup: float = 1.2, *, blocks: int = 2, boot_noise: float = 0.002, seed: int = 0
) -> list[Record]:
    """Sessions that replay agent traffic, in blocks behind those of the sweep."""
    rng = random.Random(f"boots/{seed}")
    made: list[Record] = []
    for block, order in enumerate(orders(blocks, seed), 10):
        for position, arm in enumerate(order):
            name = f"perf-agent-b{block}-{position}-{arm}"
            pace = 30.0 / (speedup if arm == "candidate" else 1.0) * (1 + rng.gauss(0, boot_noise))
            cell = "agent/concurrency=1"
            quiet = {"load_1min": 1.0, "steal_share": 0.0, "foreign_cpu_share": 0.01}
            made += [
                session("perf", name, arm, variant="agent"),
                MonitorRecord(stage="perf", session=name, values=quiet),
                replay(arm, name, block, position, agent_turns(pace, seed=4 * block + position)),
                path("perf", arm, name=name, cell=cell),
            ]
    return made
