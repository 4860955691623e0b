"""Protects a run from what replays depend on: whatever is missing or dies leaves a record that says
so, and the client is asked the same in both arms, apart from our own environment."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from local_engine import LocalEngine, setting

from fasttrack.engine.base import Engine, Generation, Launch, SessionInfo
from fasttrack.engine.served import ServerSession, counted, since
from fasttrack.engine.setting import Setting
from fasttrack.errors import RunError, UsageError
from fasttrack.perf import sweep
from fasttrack.perf.agent import client, replay
from fasttrack.schema import (
    AgentRecord,
    EngineStep,
    MonitorRecord,
    PathRecord,
    PathStep,
    SessionRecord,
)
from fasttrack.schema.claim import AgentTraffic

RECORDED = Path(__file__).with_name("recorded")
SPEC = {"block": 3, "position": 1, "arm": "candidate", "agent": [1], "shape": [1, 1, 0]}


class Server(ServerSession):
    """Answers as a server's session does; `dead` after so many questions about its steps."""

    def __init__(self, launch: Launch, dead: int | None) -> None:
        self.info = SessionInfo(switch="latency_specialized", fingerprint={"timer": "perf_counter"})
        self.url, self.model, self.peak_rss_mib = "http://127.0.0.1:1", "served", None
        self.launch, self._left, self.asked = launch, dead, 0

    def warm_up(self) -> None:
        """Nothing."""

    def reset_prefix_cache(self) -> None:
        """Nothing."""

    def counters(self) -> dict[str, int]:
        """More at every look."""
        self.asked += 1
        return {"requests": 20 * self.asked}

    def ran(self) -> Generation:
        """One step of decode."""
        if self._left == 0:
            raise RunError("ENG-003", "the server ended with status 137")
        self._left = None if self._left is None else self._left - 1
        step = PathStep(
            step=0, path="specialised", reason="", requests=1, tokens=1, prefill_tokens=0
        )
        ran = EngineStep(start_s=0.0, duration_s=0.0, decode_tokens=1, prefill_tokens=0)
        return Generation(answers=(), steps=(ran,), path=(step,))

    def __exit__(self, *_: object) -> None:
        """Nothing."""


@dataclasses.dataclass(frozen=True)
class Servers(Engine):
    """Boots such servers."""

    dead: int | None = None
    booted: list[Server] = dataclasses.field(default_factory=list)

    def start(self, launch: Launch) -> Any:
        """A session."""
        self.booted.append(Server(launch, self.dead))
        return self.booted[-1]


def program(folder: Path, body: str) -> Path:
    """A client: Python that is given `out`, its folder, and `config`."""
    path = folder / "aiperf"
    path.write_text(
        f"#!{sys.executable}\nimport json, os, shutil, sys, time\n"
        "if sys.argv[1] == '--version':\n    print('0.13.0'); sys.exit()\n"
        "config = json.load(open(sys.argv[3]))\n"
        "out = config['benchmark']['artifacts']['dir']\n" + body + "\n"
    )
    path.chmod(0o755)
    return path


def copies() -> str:
    """Leaves the recorded files."""
    return f"shutil.copytree({str(RECORDED)!r}, out)"


def ready(
    folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, dead: int | None = None, **also: Any
) -> tuple[Setting, Servers]:
    """A setting with a server and a client."""
    servers = Servers("vllm", "none", server="none", dead=dead)
    monkeypatch.setattr(replay, "behind_server", lambda engine: servers)
    (folder / "checkpoint").mkdir()
    made = dataclasses.replace(
        setting(folder),
        engine=LocalEngine("vllm", "none", server="some.module"),
        checkpoint=folder / "checkpoint",
        aiperf=program(folder, body),
        **also,
    )
    return made, servers


def replayed(records: list[Any]) -> AgentRecord:
    """The one replay among records."""
    (found,) = [record for record in records if isinstance(record, AgentRecord)]
    return found


def test_a_replay_leaves_all_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, servers = ready(tmp_path, monkeypatch, copies())
    records = sweep.run(made, SPEC)
    kinds = [AgentRecord, PathRecord, SessionRecord, MonitorRecord]
    assert [type(record) for record in records] == kinds
    found = replayed(records)
    assert (found.status, found.exit_status, found.client) == ("ok", 0, "aiperf 0.13.0")
    assert (found.block, found.position, found.arm) == (3, 1, "candidate")
    assert len(found.turns) == sum(len(tree.output_tokens) for tree in found.planned) == 19
    assert found.counters == {"requests": 20}
    assert found.call_s is not None and found.call_s > 0
    assert records[1].cell == found.cell == "agent/concurrency=1"
    (server,) = servers.booted
    assert server.launch.target.engine_args["enable_prefix_caching"] is True


def test_two_numbers_of_trees_share_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = AgentTraffic(concurrency=(1, 2))
    made, servers = ready(tmp_path, monkeypatch, copies(), agent=both)
    records = sweep.run(made, SPEC)
    cells = [record.cell for record in records if isinstance(record, AgentRecord)]
    assert cells == ["agent/concurrency=1", "agent/concurrency=2"]
    assert len(servers.booted) == 1


def test_without_a_client_nothing_is_booted_and_nothing_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, servers = ready(tmp_path, monkeypatch, "")
    found = replayed(sweep.run(dataclasses.replace(made, aiperf=None), SPEC))
    assert found.status == "no_client"
    assert "pip install aiperf==0.13.0" in found.message
    assert servers.booted == []


def test_an_engine_without_a_server_is_told(tmp_path: Path) -> None:
    found = replayed(sweep.run(setting(tmp_path), SPEC))
    assert found.status == "no_server"
    assert "'fake' has no OpenAI-compatible server" in found.message


@pytest.mark.parametrize(
    ("body", "says"),
    [("sys.exit(1)", "there is no profile_export_raw.jsonl"), ("os.abort()", "there is no")],
)
def test_a_client_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    made, _ = ready(tmp_path, monkeypatch, body)
    found = replayed(sweep.run(made, SPEC))
    assert found.status == "failed"
    assert found.exit_status not in (0, None)
    assert says in found.message


def test_a_server_that_dies_under_the_replay_leaves_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = ready(tmp_path, monkeypatch, copies(), dead=1)
    records = sweep.run(made, SPEC)
    found = replayed(records)
    assert (found.status, len(found.turns)) == ("died", 19)
    assert "ENG-003: the server ended with status 137" in found.message
    assert any(isinstance(record, SessionRecord) for record in records)


def test_a_server_that_is_dead_at_once_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = ready(tmp_path, monkeypatch, copies(), dead=0)
    records = sweep.run(made, SPEC)
    assert (replayed(records).status, replayed(records).turns) == ("died", ())
    kinds = {type(record) for record in records}
    assert kinds == {AgentRecord, SessionRecord, MonitorRecord}


def test_a_client_that_does_not_end_is_stopped_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    body = (
        f"if os.fork() == 0:\n    open({str(child)!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)"
    )
    made, _ = ready(tmp_path, monkeypatch, body, timeout_s=2.0)
    found = replayed(sweep.run(made, SPEC))
    assert (found.status, found.exit_status) == ("failed", None)
    for _ in range(100):
        if not _running(int(child.read_text())):
            break
        time.sleep(0.05)
    assert not _running(int(child.read_text()))


def _running(pid: int) -> bool:
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return told.rpartition(")")[2].split()[0] != "Z"


def test_the_client_does_not_see_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline variables make it take a tokenizer's folder for a name on the hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    seen = tmp_path / "seen.json"
    body = f"json.dump(dict(os.environ), open({str(seen)!r}, 'w'))\n" + copies()
    made, _ = ready(tmp_path, monkeypatch, body)
    assert replayed(sweep.run(made, SPEC)).status == "ok"
    told = json.loads(seen.read_text())
    assert not {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONPATH"} & set(told)
    assert told["AIPERF_DATASET_MMAP_CACHE_ENABLED"] == "false"


def test_both_arms_are_asked_fixed_work_without_a_marker(tmp_path: Path) -> None:
    asked = client.Asked(
        url="http://127.0.0.1:1", model="served", tokenizer=tmp_path, traces=tmp_path, trees=3,
        concurrency=2, idle_cap_s=10.0, request={"temperature": 1, "ignore_eos": False},
        out=tmp_path,
    )  # fmt: skip
    told = client.config(asked)["benchmark"]
    (phase,), (data,) = told["phases"], told["datasets"]
    assert phase["timing_mode"] == "agentic_replay"
    assert (phase["sessions"], phase["concurrency"]) == (3, 2)
    assert "duration" not in phase and "scenario" not in told
    assert data["cache_bust"] == {"target": "none"}
    # Lengths are the traces': nobody may let an answer end by itself.
    assert told["endpoint"]["extra"] == {"temperature": 1, "ignore_eos": True}


def test_the_program_is_found_or_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert client.find(None, tmp_path) is None
    kept = tmp_path / "aiperf" / "bin"
    kept.mkdir(parents=True)
    assert client.find(None, tmp_path) is None
    installed = program(kept, "")
    assert client.find(None, tmp_path) == installed
    assert client.find(installed, Path("elsewhere")) == installed
    monkeypatch.setenv("PATH", str(kept), prepend=os.pathsep)
    assert client.find(None, Path("elsewhere")) == installed
    with pytest.raises(UsageError, match="is no program"):
        client.find(tmp_path / "no", tmp_path)


METRICS = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="served"} 67.0
vllm:prompt_tokens_total{engine="1",model_name="served"} 3.0
vllm:prompt_tokens_created{engine="0",model_name="served"} 1.796e+09
vllm:generation_tokens_total{engine="0",model_name="served"} 16.0
vllm:prefix_cache_hits_total{engine="0",model_name="served"} 128.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="served"} 2.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="served"} 1.0
broken line
"""


def test_counters_are_summed_over_engines_and_reasons() -> None:
    told = counted(METRICS)
    assert told == {
        "requests": 3,
        "prompt_tokens": 70,
        "generated_tokens": 16,
        "cached_tokens": 128,
    }
    assert since({"requests": 1, "gone": 2}, told) == {"requests": 2}
    assert counted("") == {}
