"""What a replay of agent traffic leaves: one record per session and concurrency, and its parts.

Part of `record`. Times are milliseconds on the client's clock, which runs in neither arm's process;
lengths are tokens. Nothing here is a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from fasttrack.schema.claim import Arm, Frozen

ReplayStatus = Literal["ok", "no_client", "no_server", "failed", "died"]
"""``no_client``: aiperf is not installed; ``no_server``: the engine has none; ``failed``: the
client left nothing that can be read; ``died``: the server did not start, or was dead in the end."""


class PlannedTree(Frozen):
    """What one trace asks: its requests in the file's order, sub-agents' among them."""

    trace: str
    input_tokens: Sequence[int]
    """As recorded, without the chat template's tokens."""
    output_tokens: Sequence[int]
    subagents: int
    stall_s: float
    """Sum of the pauses between answer and next request."""


class AgentTurn(Frozen):
    """One request as the client saw it."""

    trace: str
    conversation: str
    """The tree's root or one of its sub-agents, by the client's name."""
    turn: int
    depth: int
    """0 of a root, 1 of a sub-agent."""
    prompt_sha256: str
    """Of the messages that were sent."""
    start_ms: float
    """From the first request of the replay."""
    latency_ms: float | None
    ttft_ms: float | None
    itl_ms: float | None
    """`latency_ms`, `ttft_ms`, `itl_ms`: the client's own, from text that can be seen."""
    arrivals: Sequence[tuple[float, int]] = ()
    """(since the request was sent, answer tokens so far) of every packet that brought any."""
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    """As the server told in this answer; null where it did not."""
    error: str = ""


class AgentRecord(Frozen):
    """A replay of all traces in one engine session, or why there was none."""

    kind: Literal["agent"] = "agent"
    session: str
    arm: Arm
    cell: str
    block: int
    position: int
    """Position of the session within its block, 0-3."""
    concurrency: int
    traces: str
    """``shipped``, or their path from the optimization's folder."""
    traces_sha256: str
    planned: Sequence[PlannedTree]
    status: ReplayStatus
    message: str = ""
    client: str = ""
    """Name and version."""
    exit_status: int | None = None
    """Of the client, for the reader: it is 0 as well when requests were refused."""
    overflows: int = 0
    """Requests that the client dropped from its records because they did not fit the context."""
    turns: Sequence[AgentTurn] = ()
    counters: Mapping[str, int] = Field(default_factory=dict)
    """What the server counted meanwhile: `requests`, `prompt_tokens`, `generated_tokens` and
    `cached_tokens`."""
    call_s: float | None = None
    """The harness's own clock around the client, its start and end included."""
