"""What aiperf leaves of a replay, as turns: every request it sent, whatever became of it.

Read are ``profile_export_raw.jsonl`` (payload and every packet of every request, with times) and
``profile_export.jsonl`` (aiperf's own metrics, less requests that did not fit the context). Packets
carry the server's count of answer tokens, so that token times do not depend on whether the
text of a token can be seen. Leaf: owns the two forms as of aiperf 0.13.0. Read by `replay`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fasttrack.schema import AgentTurn
from fasttrack.schema._json import digest

RAW = "profile_export_raw.jsonl"
METRICS = "profile_export.jsonl"
MAX_BYTES = 2 * 2**30
MOST_ERROR = 200
WITHIN = "::"
"""Between a tree's name and what tells its conversations apart."""


class Unreadable(Exception):
    """There is no export, or not in this form; the message says what is missing."""


def turns(out: Path) -> tuple[AgentTurn, ...]:
    """All requests in the order in which they were sent; raises `Unreadable`."""
    raw = list(_lines(_file(out, RAW)))
    metrics = {_key(one): one.get("metrics") or {} for one in _lines(_file(out, METRICS))}
    try:
        raw.sort(key=lambda one: int(one["metadata"]["request_start_ns"]))
        first = int(raw[0]["metadata"]["request_start_ns"]) if raw else 0
        return tuple(_turn(one, metrics.get(_key(one), {}), first) for one in raw)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{RAW}: {type(error).__name__}: {error}") from error


def _file(out: Path, name: str) -> Path:
    """A file below `out`; aiperf may put a folder of its own between."""
    found = sorted(out.rglob(name))
    if not found:
        raise Unreadable(f"there is no {name}")
    if found[0].stat().st_size > MAX_BYTES:
        raise Unreadable(f"{name} is larger than {MAX_BYTES >> 30} GiB")
    return found[0]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield dict(json.loads(line))
                except (TypeError, ValueError) as error:
                    raise Unreadable(f"{path.name}: line {number} is no JSON object") from error


def _key(one: Mapping[str, Any]) -> str:
    metadata = one.get("metadata") or {}
    return str(metadata.get("x_request_id"))


def _turn(one: Mapping[str, Any], metrics: Mapping[str, Any], first_ns: int) -> AgentTurn:
    metadata = one["metadata"]
    arrivals: list[tuple[float, int]] = []
    usage: dict[str, Any] = {}
    for message in one.get("responses") or ():
        told = _usage(message)
        count = told.get("completion_tokens")
        if count and count > (arrivals[-1][1] if arrivals else 0):
            since_ms = (int(message["perf_ns"]) - int(one["start_perf_ns"])) / 1e6
            arrivals.append((round(since_ms, 3), int(count)))
        usage.update({name: value for name, value in told.items() if value is not None})
    conversation = str(metadata.get("conversation_id"))
    details = usage.get("prompt_tokens_details") or {}
    return AgentTurn(
        trace=str(metadata.get("source_trace_id") or conversation.split(WITHIN)[0]),
        conversation=conversation,
        turn=int(metadata.get("turn_index") or 0),
        depth=int(metadata.get("agent_depth") or 0),
        prompt_sha256=_prompt(one.get("payload")),
        start_ms=round((int(metadata["request_start_ns"]) - first_ns) / 1e6, 3),
        latency_ms=_ms(metrics, "request_latency"),
        ttft_ms=_ms(metrics, "time_to_first_token"),
        itl_ms=_ms(metrics, "inter_token_latency"),
        arrivals=tuple(arrivals),
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        # vLLM leaves the details out where nothing was cached.
        cached_tokens=int(details.get("cached_tokens") or 0) if usage else None,
        error=_error(one),
    )


def _usage(message: Mapping[str, Any]) -> dict[str, Any]:
    """The token counts of one server-sent event, if it brings any."""
    for packet in message.get("packets") or ():
        if packet.get("name") == "data" and str(packet.get("value")).startswith("{"):
            told = json.loads(packet["value"]).get("usage")
            if told:
                return dict(told)
    return {}


def _prompt(payload: Any) -> str:
    messages = payload.get("messages") if isinstance(payload, Mapping) else None
    return digest(messages) if messages else hashlib.sha256(b"").hexdigest()


def _ms(metrics: Mapping[str, Any], name: str) -> float | None:
    told = metrics.get(name)
    if not isinstance(told, Mapping) or told.get("unit") != "ms" or told.get("value") is None:
        return None
    return round(float(told["value"]), 3)


def _error(one: Mapping[str, Any]) -> str:
    """Why a request failed; empty if it did not."""
    metadata, told, status = one["metadata"], one.get("error"), one.get("status")
    if metadata.get("context_overflow_skip"):
        why = "it did not fit the context"
    elif metadata.get("was_cancelled"):
        why = "the client gave it up"
    elif told:
        why = " ".join(str(told.get("message") or told.get("type") or told).split())
    else:
        why = "" if status in (None, 200) else "no answer"
    code = "" if status in (None, 200) or not why else f"HTTP {status}: "
    return f"{code}{why}"[:MOST_ERROR]
