"""Which launches of a decode graph are ours, and which path a step took.

Owns: the table of ops by batch, the decision per step. Does not own: launches (`layer`), the facts
of a step (`state` collects them), the record (`runtime.evidence`). Knows no engine.

A graph is captured once per batch and replayed without Python, so what is ours is settled when it
is captured; a step is specialised if the engine replays a graph that was captured so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, get_args

from kimi_k3.runtime.plan import (
    DECODE,
    EMPTY,
    MIXED,
    PREFILL,
    PROFILE,
    SWITCHED_OFF,
    VERIFIED,
    VERIFY,
    Plan,
    StepFacts,
    Switch,
)

Op = Literal["attn_res", "kda", "mla", "exchange", "moe", "shared", "latent_up", "tail"]
OPS: tuple[Op, ...] = get_args(Op)
"""attn_res: mix sites. kda, mla: a layer of that kind from its input to its output projection. moe:
router, latent down-projection, choice, routed experts and their sum. shared: the shared experts.
latent_up: the way back from the latent space; these two only where `moe` is. exchange: sums over
ranks behind attention of ours, through mailboxes into the mix site, so only where `attn_res` is and
there are ranks to sum over. tail: the maps into and out of the latent space shared among ranks, all
sums of the experts through mailboxes into the next mix site. vLLM's all-reduce makes all other
sums."""

_NEEDS: Mapping[Op, frozenset[Op]] = {
    "shared": frozenset({"moe"}),
    "latent_up": frozenset({"moe"}),
    "exchange": frozenset({"attn_res"}),
    "tail": frozenset({"attn_res", "moe", "shared"}),
}

_OF_REQUESTS: frozenset[Op] = frozenset({"kda", "mla", "exchange"})
"""Ops that take every row for a request of its own; `exchange` stands behind the first two. All
others look at a row alone, whosever it is."""

LARGEST_BATCH = 64
"""Rows of any launch of ours."""
LARGEST: Mapping[Op, int] = {
    "attn_res": 64, "kda": 64, "mla": 64, "exchange": 0, "moe": 64, "shared": 64, "latent_up": 8,
    "tail": 8,
}  # fmt: skip
"""Largest batch at which an op is ours; 0: never. The dense layer and the final site are vLLM's.
`tail` gains nothing from 8 rows on. `exchange` waits until it was run between two GPUs inside
vLLM."""
MEASURED: Mapping[Op, int] = {
    "attn_res": 64, "kda": 64, "mla": 64, "exchange": 64, "moe": 64, "shared": 64, "latent_up": 8,
    "tail": 64,
}  # fmt: skip
"""The same by time alone: up to these batches an op is faster than vLLM's, or as fast, inside the
engine (`bench/RESULTS.md`, "In vLLM")."""
Table = Literal["shipped", "measured"]
TABLES: Mapping[Table, Mapping[Op, int]] = {"shipped": LARGEST, "measured": MEASURED}

NO_GRAPH = Plan("stock", "not in a full CUDA graph")
OTHER_GRAPH = Plan("stock", "graph captured stock")
LAST_TOKENS = Plan("specialised", "last token of a prompt in a decode graph")
"""vLLM takes a request that brings the one missing token of a prompt for a decode."""


def graphs(sizes: Iterable[int], requests: int, each: int = 1) -> tuple[int, ...]:
    """Rows of vLLM's full graphs of decode: its capture sizes in whole requests of `each` rows, as
    far as `requests` of them and the largest size go (`CudaGraphManager._init_candidates`)."""
    wanted = set(sizes)
    most = min(max(wanted, default=0), requests * each)
    return tuple(sorted({rows for size in wanted if (rows := -(-size // each) * each) <= most}))


def ours(
    batch: int, largest: Mapping[Op, int] = LARGEST, ranks: int = 1, each: int = 1
) -> frozenset[Op]:
    """The ops that are ours in the graph of `batch` rows, `each` of them of one request; empty: the
    graph is stock's."""
    if not 1 <= batch <= LARGEST_BATCH:
        return frozenset()
    found: set[Op] = {op for op in OPS if batch <= largest.get(op, 0)}
    if ranks == 1:
        found.discard("exchange")
    if each > 1:
        found -= _OF_REQUESTS
    return frozenset(op for op in found if _NEEDS.get(op, frozenset()) <= found)


def plan(
    facts: StepFacts | None,
    switch: Switch,
    captured: Collection[int],
    graph: int | None,
) -> Plan:
    """Name the path a step takes. `captured`: rows of graphs that have launches of ours; `graph`:
    the rows of the full graph that the engine replays for the step, None if it replays none.

    The graph is what runs, so it decides, whatever the engine replays it for: steps of decodes, and
    such in which every request verifies equally many tokens. Everything else is stock: prefill,
    mixed steps, drafts of some requests only, eager and piecewise steps, more rows than the largest
    graph.
    """
    if facts is None:
        return PROFILE
    if switch != "latency_specialized":
        return SWITCHED_OFF
    if not facts.requests:
        return EMPTY
    if graph in captured:
        if facts.prefill_rows:
            return LAST_TOKENS
        return VERIFIED if facts.verify_rows else DECODE
    if facts.verify_rows and not facts.verify_tokens:
        return VERIFY
    if facts.prefill_rows:
        return MIXED if facts.decode_rows else PREFILL
    return NO_GRAPH if graph is None else OTHER_GRAPH
