"""One engine session of one arm that is asked recorded agent traffic, through its server.

The server is a fresh one with an empty prefix cache; a second concurrency of the same session gets
the cache reset. Whatever goes wrong leaves a record that says so and no error: the stage's other
records are not lost to a client that is not installed. Owns the session and the record; what counts
is the rule's. Read by `sweep`.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fasttrack.engine.served import ServerSession, behind_server, since
from fasttrack.engine.setting import Setting, Variant, path_record
from fasttrack.errors import RunError
from fasttrack.perf import monitors
from fasttrack.perf.agent import client, export
from fasttrack.perf.agent import traces as trace_files
from fasttrack.schema import AgentRecord, Arm, MonitorRecord, Record, SessionRecord
from fasttrack.schema.claim import AgentTraffic

VARIANT = "agent"
SERVED: Mapping[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": None}
"""Prefixes are what agents reuse, and the server has to count; other defaults are the target's."""


@dataclass(frozen=True)
class _Asked:
    """What one unit of work has to measure."""

    spec: Mapping[str, Any]
    traffic: AgentTraffic
    traces: trace_files.Traces
    name: str
    """Of the session."""

    def record(self, cell: str, concurrency: int, **told: Any) -> AgentRecord:
        """A record of one concurrency."""
        return AgentRecord(
            session=self.name,
            arm=self.spec["arm"],
            cell=cell,
            block=self.spec["block"],
            position=self.spec["position"],
            concurrency=concurrency,
            traces=self.traffic.traces or "shipped",
            traces_sha256=self.traces.sha256,
            planned=self.traces.trees,
            **told,
        )


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """All concurrencies of one boot. Raises `UsageError` for traces that cannot be read."""
    arm: Arm = spec["arm"]
    traffic = setting.agent or AgentTraffic()
    asked = _Asked(
        spec=spec,
        traffic=traffic,
        traces=trace_files.load(setting.claim, setting.target_name, setting.folder, traffic),
        name=f"perf-agent-b{spec['block']}-{spec['position']}-{arm}",
    )
    cells = {
        cell: concurrency
        for cell, concurrency in zip(traffic.cells, traffic.concurrency, strict=True)
        if not setting.cell or fnmatch(cell, setting.cell)
    }
    if not cells:
        return []
    status, message = _lacking(setting)
    if status:
        return [
            asked.record(cell, concurrency, status=status, message=message)
            for cell, concurrency in cells.items()
        ]
    assert setting.aiperf is not None
    return _replayed(setting, asked, cells, client.of(setting.aiperf))


def _lacking(setting: Setting) -> tuple[str, str]:
    """Status and sentence of what keeps every replay from being made; empty for nothing."""
    if not setting.engine.server:
        return "no_server", f"the engine {setting.engine.name!r} has no OpenAI-compatible server"
    if setting.checkpoint is None:
        return "no_server", "the target names no checkpoint, whose tokenizer the client needs"
    # On a node of a cluster it may be missing where the driver has it.
    if setting.aiperf is None or not setting.aiperf.is_file():
        return "no_client", f"aiperf is not installed here: {client.INSTALL}"
    return "", ""


def _replayed(
    setting: Setting, asked: _Asked, cells: Mapping[str, int], program: client.Client
) -> list[Record]:
    """Boot, replay every cell, stop. A server that does not start, or dies, ends in records."""
    arm: Arm = asked.spec["arm"]
    records: list[Record] = []
    ready: list[SessionRecord] = []
    waiting = dict(cells)
    variant = Variant(VARIANT, {**SERVED, **asked.traffic.engine_args})
    setting = replace(setting, engine=behind_server(setting.engine))
    watch = monitors.Watch()
    try:
        with setting.session(
            "perf", asked.name, arm, records, variant, on_ready=ready.append
        ) as session:
            assert isinstance(session, ServerSession)
            session.warm_up()
            with watch:
                for cell, concurrency in cells.items():
                    setting.say(f"{asked.name}: {cell}, {asked.traces.requests} requests")
                    records += _cell(setting, asked, session, program, cell, concurrency)
                    del waiting[cell]
    except RunError as error:
        told = f"{error.code}: {error.cause}"[:1000]
        records += [
            asked.record(cell, concurrency, status="died", message=told, client=program.name)
            for cell, concurrency in waiting.items()
        ]
        if ready and not any(isinstance(one, SessionRecord) for one in records):
            records.append(ready[0].model_copy(update={"end_s": time.monotonic()}))
    if any(isinstance(one, SessionRecord) for one in records):
        values = {**watch.values, **setting.place}
        records.append(MonitorRecord(stage="perf", session=asked.name, values=values))
    return records


def _cell(
    setting: Setting,
    asked: _Asked,
    session: ServerSession,
    program: client.Client,
    cell: str,
    concurrency: int,
) -> list[Record]:
    """One replay; raises `RunError` where the server is dead before it."""
    session.reset_prefix_cache()
    session.ran()
    before = session.counters()
    told: dict[str, Any] = {"client": program.name}
    with _scratch() as scratch:
        _write(asked, scratch / "traces")
        start = time.monotonic()
        told["exit_status"] = client.replay(
            program,
            client.Asked(
                url=session.url,
                model=session.model,
                tokenizer=Path(str(setting.checkpoint)).absolute(),
                traces=scratch / "traces",
                trees=len(asked.traces.trees),
                concurrency=concurrency,
                idle_cap_s=asked.traffic.idle_cap_s,
                request=asked.traffic.request,
                out=scratch / "out",
            ),
            scratch,
            setting.logs / f"{asked.name}-c{concurrency}.aiperf.log",
            setting.timeout_s + math.fsum(tree.stall_s for tree in asked.traces.trees),
        )
        told["call_s"] = time.monotonic() - start
        try:
            told |= {"status": "ok", "turns": export.turns(scratch / "out")}
        except export.Unreadable as error:
            told |= {"status": "failed", "message": f"aiperf left no records: {error}"[:1000]}
    try:
        ran = session.ran()
        told["counters"] = since(before, session.counters())
    except RunError as error:
        # What the client saw of it stays on record.
        told |= {"status": "died", "message": f"{error.code}: {error.cause}"[:1000]}
        return [asked.record(cell, concurrency, **told)]
    record = asked.record(cell, concurrency, **told)
    return [record, path_record("perf", asked.name, record.arm, cell, ran)]


def _write(asked: _Asked, folder: Path) -> None:
    folder.mkdir()
    for name, content in asked.traces.files.items():
        (folder / name).write_bytes(content)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder of a short name: the client puts sockets below it."""
    folder = Path(tempfile.mkdtemp(prefix="fasttrack-agent-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
