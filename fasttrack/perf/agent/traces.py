"""Traces of agent traffic: what a replay has to ask, and the digest of the files that say so.

The format is public as that of the Weka KV-cache tester: a JSON object per conversation tree, its
requests by length, time and the hash of every block of prompt tokens, sub-agents between them.
There are no words in it: the client makes them up, alike for alike blocks. Shipped are three trees
of our own (`traces/`). Leaf: owns reading, counting and digests, starts nothing. Read by the replay
and by the pipeline, which looks at the files before anything is measured.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrack.errors import UsageError
from fasttrack.schema import Claim, PlannedTree
from fasttrack.schema._json import digest, loads
from fasttrack.schema.claim import AgentTraffic

SHIPPED = Path(__file__).with_name("traces")
MAX_FILES = 4096
MAX_BYTES = 512 * 2**20
"""Of all files together."""
CALLS = ("n", "s")
SUBAGENT = "subagent"


@dataclass(frozen=True)
class Traces:
    """Files of a trace set, and what a replay of each of them once asks."""

    files: Mapping[str, bytes]
    sha256: str
    trees: tuple[PlannedTree, ...]

    @property
    def requests(self) -> int:
        """Requests of one replay."""
        return sum(len(tree.output_tokens) for tree in self.trees)


def load(claim: Claim, target: str, folder: Path, traffic: AgentTraffic | None = None) -> Traces:
    """The traces of a target: by their path from the optimization's folder, or the shipped ones.

    Raises `UsageError` PRF-003 for files that cannot be replayed on this target, PRF-002 for
    another digest than the claim's.
    """
    chosen = claim.targets[target]
    wanted = traffic or chosen.agent or AgentTraffic()
    path = SHIPPED if wanted.traces is None else folder / wanted.traces
    try:
        files = _files(path)
        trees = tuple(_tree(name, loads(content)) for name, content in files.items())
        _check(trees, wanted, chosen.max_model_len)
    except (OSError, ValueError) as error:
        told = " ".join(str(error).split())[:300]
        raise UsageError("PRF-003", f"agent traces {path}: {told}", cell="agent") from error
    listed = [[name, hashlib.sha256(content).hexdigest()] for name, content in files.items()]
    sha256 = digest(listed)
    if wanted.sha256 not in (None, sha256):
        raise UsageError(
            "PRF-002",
            f"agent traces {path} have the digest {sha256}, the claim wants {wanted.sha256}",
            next_step="get the traces the claim was written for, or pin the new digest on purpose",
            cell="agent",
        )
    return Traces(files, sha256, trees)


def _files(path: Path) -> dict[str, bytes]:
    found = [path] if path.is_file() else sorted(path.glob("*.json"))
    if not found:
        raise ValueError("there is no .json file")
    if len(found) > MAX_FILES or sum(one.stat().st_size for one in found) > MAX_BYTES:
        raise ValueError(f"more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB")
    return {one.name: one.read_bytes() for one in found}


def _check(trees: Sequence[PlannedTree], wanted: AgentTraffic, room: int) -> None:
    names = [tree.trace for tree in trees]
    if len(set(names)) < len(names):
        raise ValueError("two traces have one id")
    if max(wanted.concurrency) > len(trees):
        raise ValueError(f"concurrency {max(wanted.concurrency)} is above {len(trees)} traces")
    for tree in trees:
        longest = max(map(sum, zip(tree.input_tokens, tree.output_tokens, strict=True)))
        if longest > room:
            raise ValueError(
                f"{tree.trace} asks for {longest} tokens of context, max_model_len is {room}"
            )


def _tree(name: str, told: Any) -> PlannedTree:
    """What one file asks; `ValueError` where it is not in the format."""
    try:
        calls = list(_calls(told["requests"]))
        return PlannedTree(
            trace=str(told["id"]),
            input_tokens=tuple(_count(call["in"]) for call, _ in calls),
            # A client must ask for one token at least.
            output_tokens=tuple(max(1, _count(call["out"])) for call, _ in calls),
            subagents=len({agent for _, agent in calls} - {None}),
            stall_s=math.fsum(float(call.get("think_time") or 0.0) for call, _ in calls),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name} is no Weka trace: {type(error).__name__}: {error}") from error


def _calls(requests: Sequence[Any]) -> Iterator[tuple[Mapping[str, Any], int | None]]:
    """Every call with the place of the sub-agent that makes it; None for the root."""
    for place, one in enumerate(requests):
        if one["type"] == SUBAGENT:
            for inner in one["requests"]:
                _kind(inner)
                yield inner, place
        else:
            _kind(one)
            yield one, None


def _kind(call: Mapping[str, Any]) -> None:
    if call["type"] not in CALLS:
        raise ValueError(f"request of type {call['type']!r}")


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{json.dumps(value)} is no number of tokens")
    return value
