"""A session whose engine answers over HTTP: where it listens, what it ran, what it counted.

The server is kept by the engine's own child (`Engine.server`); requests are sent by a client of the
caller's choice. Counters are read from the server's ``/metrics``, by this process: a second count
beside the client's. Read by `perf.agent` and external evals.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import urlsplit

from fasttrack.engine.base import Engine, Generation, Launch, Session
from fasttrack.errors import RunError
from fasttrack.schema import EngineStep, PathStep

COUNTERS = {
    "requests": ("vllm:request_success_total",),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generated_tokens": ("vllm:generation_tokens_total",),
    # Hits are counted once more when a request that lost its place is scheduled again.
    "cached_tokens": ("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"),
}
"""What is counted, and vLLM's names of it: the first one that the server tells."""
WARM_UP_TOKENS = 16


def behind_server(engine: Engine) -> Engine:
    """The engine behind its server; its sessions are `ServerSession`s. It must have one."""
    return _Served(**{**vars(engine), "module": engine.server})


@dataclass(frozen=True)
class _Served(Engine):
    """Boots servers."""

    def start(self, launch: Launch) -> Session:
        """As `Engine.start`."""
        return ServerSession(super().start(launch))


class ServerSession(Session):
    """A running server."""

    def __init__(self, session: Session) -> None:
        super().__init__(session._child, session.info, session._timeout_s)
        where, _ = self._child.call("address", self._timeout_s)
        self.chat_url = str(where["url"])
        """Of chat completions."""
        parts = urlsplit(self.chat_url)
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.model = str(where["model"])

    def warm_up(self) -> None:
        """One short answer, so that nobody's first request pays for what a boot puts off.

        Raises `RunError` ENG-006 where there is none.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "warm-up " * 8}],
            "max_tokens": WARM_UP_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        self._http(self.chat_url, json.dumps(body).encode())

    def counters(self) -> dict[str, int]:
        """`COUNTERS` since the server's start; one that it does not tell is left out."""
        return counted(self._http(f"{self.url}/metrics").decode("utf-8", "replace"))

    def ran(self) -> Generation:
        """Steps since the last time, as scheduler and optimization tell them; no answers.

        Raises `RunError` ENG-003 where the server is dead.
        """
        told, _ = self._child.call("told", self._timeout_s)
        return Generation(
            answers=(),
            steps=tuple(
                EngineStep(
                    start_s=0.0, duration_s=0.0, decode_tokens=decode, prefill_tokens=prefill
                )
                for decode, prefill in told["scheduled"]
            ),
            path=tuple(
                PathStep.model_validate(one) for one in told["log"] if one["path"] != "profile"
            ),
            drafted=tuple(told["drafted"]),
        )

    def _http(self, url: str, body: bytes | None = None) -> bytes:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                return bytes(answer.read())
        except (OSError, HTTPException) as error:
            raise RunError("ENG-006", f"{urlsplit(url).path}: {error}") from error


def counted(text: str) -> dict[str, int]:
    """`COUNTERS` from Prometheus text, summed over engines and labels."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if not rest:
            name, _, rest = line.partition(" ")
        number = line.rpartition(" ")[2]
        if name and not name.startswith("#"):
            try:
                sums[name] = sums.get(name, 0.0) + float(number)
            except ValueError:
                continue
    found = {}
    for counter, names in COUNTERS.items():
        known = [name for name in names if name in sums]
        if known:
            found[counter] = round(sums[known[0]])
    return found


def since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """What was counted between two looks."""
    return {name: after[name] - before[name] for name in after if name in before}
