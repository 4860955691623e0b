"""Protects runs on a Ray cluster: the verdicts are those of a run here, a lost node costs its whole
block and is told, and what a cluster cannot give is refused with a code. Three worker nodes of one
machine.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import fasttrack, optimization, records, run_folders, unit_files

from fasttrack.bundle import provenance
from fasttrack.cluster import blocks
from fasttrack.schema import FailureRecord, MonitorRecord, SampleRecord

ray = pytest.importorskip("ray")

COMMAND = ("validate", "demo", "--only", "perf", "--json")
DEAD_S = 400
QUICK_DEATH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that measures nothing, and three workers of one CPU each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    top = str(Path(__file__).parents[2])
    paths = [top, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    common = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    head = {"num_cpus": 0, "_system_config": QUICK_DEATH, **common}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(3):
        made.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    yield made
    ray.shutdown()
    made.shutdown()


def verdicts(run: Path) -> Any:
    return json.loads((run / "verdicts.json").read_bytes())["verdicts"]


def places(run: Path) -> dict[str, str]:
    """Node by session."""
    found = records(run, "perf/block")
    return {r.session: str(r.values["node"]) for r in found if isinstance(r, MonitorRecord)}


def kill_once(cluster: Any, folder: Path, session: str) -> threading.Thread:
    """Kill the node that measures when the log of a session appears."""

    def wait() -> None:
        deadline = time.monotonic() + DEAD_S
        while not list(folder.glob(f"runs/*/logs/{session}-*.log")):
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
        used = next(iter(places(next(folder.glob("runs/*"))).values()))
        (doomed,) = [one for one in cluster.worker_nodes if one.node_id.startswith(used)]
        cluster.remove_node(doomed, allow_graceful=False)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_node_costs_its_block_and_no_verdict(tmp_path: Path, cluster: Any) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        optimization(folder, speedup=1.2)
    local = fasttrack(here, *COMMAND)
    killer = kill_once(cluster, there, "perf-b1-1")
    ran = fasttrack(there, *COMMAND, "--ray", cluster.address)
    killer.join()
    assert ran.status == local.status, ran.err

    (one,), (other,) = run_folders(here), run_folders(there)
    assert verdicts(other) == verdicts(one)
    assert {p.split("/")[1] for p in unit_files(other)} == {
        p.split("/")[1] for p in unit_files(one)
    }
    (lost,) = records(other, "perf/failures")
    assert isinstance(lost, FailureRecord)
    assert (lost.code, lost.unit) == ("RAY-002", "block1")

    by_block: dict[str, set[str]] = {}
    for session, name in places(other).items():
        by_block.setdefault(session.split("-")[1], set()).add(name)
    assert all(len(names) == 1 for names in by_block.values())
    assert by_block["b0"] != by_block["b1"]
    assert all(name in lost.cause for name in by_block["b0"] | by_block["b1"])

    samples = [[r for r in records(run, "perf/block") if isinstance(r, SampleRecord)]
               for run in (one, other)]  # fmt: skip
    clock = {"call_s": None, "marks": ()}
    plain = [[r.model_copy(update=clock) for r in found] for found in samples]
    assert plain[0] == plain[1]

    assert fasttrack(there, "verify", ran.json["bundle"]).status == 0
    told = fasttrack(there, "report", ran.json["bundle"], "--markdown").out
    assert "RAY-002" in told
    assert "Perf ran on a cluster" in told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_a_node_cannot_do_ends_the_run_with_a_code(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimization(tmp_path, fault="raise_at_start")
    ran = fasttrack(tmp_path, *COMMAND, "--ray", cluster.address)
    assert (ran.status, ran.error["code"]) == (5, "ENG-001")
    (run,) = run_folders(tmp_path)
    assert not unit_files(run)

    # The harness here is not the one that the nodes have.
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "harness_digest", lambda: "another")
        ran = fasttrack(tmp_path, *COMMAND, "--ray", cluster.address)
    assert (ran.status, ran.error["code"]) == (4, "RAY-004")
    assert "another harness" in ran.error["cause"]

    with monkeypatch.context() as patch:
        patch.setattr(blocks, "LOST_S", 0.0)
        patch.setattr(blocks.node, "measure", lambda *_: os._exit(1))
        ran = fasttrack(tmp_path, *COMMAND, "--ray", cluster.address)
    assert (ran.status, ran.error["code"]) == (5, "ENG-003")

    for one in list(cluster.worker_nodes):
        cluster.remove_node(one, allow_graceful=False)
    ran = fasttrack(tmp_path, *COMMAND, "--ray", cluster.address)
    assert (ran.status, ran.error["code"]) == (4, "RAY-003")


def test_no_cluster_is_told_at_once(tmp_path: Path) -> None:
    optimization(tmp_path)
    ran = fasttrack(tmp_path, *COMMAND, "--ray", "127.0.0.1:1")
    assert (ran.status, ran.error["code"]) == (4, "RAY-001")
