"""Protects the path stage: every planned proof is made, in both arms, and leaves its step log."""

from __future__ import annotations

from pathlib import Path

import zoo_records as zoo
from local_engine import LocalEngine, setting

from fasttrack.correctness import path
from fasttrack.rules import proof
from fasttrack.schema import (
    PathRecord,
    Record,
    State,
    StateRecord,
    TimelineRecord,
    TraceRecord,
    TwinRecord,
)


def run(folder: Path, **fake: object) -> list[Record]:
    """Both arms."""
    chosen = setting(folder, **fake)
    return [record for arm in ("base", "candidate") for record in path.run(chosen, {"arm": arm})]


def test_every_proof_is_made_in_both_arms(tmp_path: Path) -> None:
    records = run(tmp_path)
    proofs = TraceRecord | TwinRecord | StateRecord | TimelineRecord
    made = [r for r in records if isinstance(r, proofs)]
    kinds = proof.kinds_of(setting(tmp_path).target)
    cells = {"path/state", "path/alternation", "path/timeline"}
    cells |= {f"path/{kind}/{what}" for kind in kinds for what in ("trace", "watermark")}
    for arm in ("base", "candidate"):
        assert sorted(r.cell for r in made if r.arm == arm) == sorted(cells)
    logs = {(r.arm, r.cell) for r in records if isinstance(r, PathRecord)}
    assert {(r.arm, r.cell) for r in made} <= logs


def test_an_honest_engine_passes_and_the_stage_covers_the_largest_batch(tmp_path: Path) -> None:
    records = run(tmp_path)
    claim = setting(tmp_path).claim
    case = zoo.case(records, claim, stages=("path",))
    assert {v.state for v in proof.judge(case)} == {State.PASS}
    batch = [r for r in records if isinstance(r, TwinRecord) and "batch=4" in r.cell]
    assert [len(r.changed) for r in batch] == [4, 4]


def test_the_session_is_started_for_observation(tmp_path: Path) -> None:
    chosen = setting(tmp_path)
    path.run(chosen, {"arm": "candidate"})
    assert isinstance(chosen.engine, LocalEngine)
    (launch,) = chosen.engine.launches
    assert launch.env == {"FASTTRACK_OBSERVED": "1"}


def test_a_name_that_some_steps_lack_has_no_least(tmp_path: Path) -> None:
    record = next(r for r in run(tmp_path, fault="no_path") if isinstance(r, TraceRecord))
    assert record.least == record.most and set(record.least) == {"stock::layer", "host::sample"}
    assert path._extreme([{"a": 1}, {"a": 3, "b": 2}], max) == {"a": 3, "b": 2}
