"""Protects the sweep: distinct prompts of exactly the cell's length, a full window, and every step
kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from local_engine import setting

from fasttrack.perf import monitors, prompts, sweep
from fasttrack.perf.window import decode_window
from fasttrack.schema import MonitorRecord, PathRecord, SampleRecord, SessionRecord

SPEC = {"block": 1, "position": 2, "window_steps": 10}


def run(folder: Path, arm: str = "candidate", **changes: Any) -> list[Any]:
    """One boot through the grid: batch 1 and 4, 64 tokens of context."""
    return sweep.run(setting(folder, **changes), {"arm": arm, **SPEC})


def samples(records: list[Any]) -> list[SampleRecord]:
    """Samples among records."""
    return [record for record in records if isinstance(record, SampleRecord)]


def test_every_cell_is_measured_once(tmp_path: Path) -> None:
    made = run(tmp_path)
    assert [s.cell for s in samples(made)] == [
        "decode/batch=1/context_tokens=64",
        "decode/batch=4/context_tokens=64",
    ]
    for sample, batch in zip(samples(made), (1, 4), strict=True):
        assert sample.session == "perf-b1-2-candidate"
        assert (sample.block, sample.position, sample.arm) == (1, 2, "candidate")
        assert sample.planned_requests == sample.completed_requests == batch
        assert sample.prompt_tokens == 64 * batch
        assert sample.cached_tokens == 0
        assert len(decode_window(sample.steps, batch)) == 10
        # Untrimmed: the steps of prefill and warm-up are there as well.
        assert sum(step.prefill_tokens for step in sample.steps) == 64 * batch
    assert [type(r) for r in made[-2:]] == [SessionRecord, MonitorRecord]


def test_each_sample_has_its_step_log(tmp_path: Path) -> None:
    made = run(tmp_path)
    paths = {r.cell: r for r in made if isinstance(r, PathRecord)}
    for sample in samples(made):
        log = paths[sample.cell]
        assert log.session == sample.session
        assert [tuple(pair) for pair in log.scheduled] == [
            (step.decode_tokens, step.prefill_tokens) for step in sample.steps
        ]


def test_prompts_are_distinct_text_of_the_exact_length(tmp_path: Path) -> None:
    chosen = setting(tmp_path)
    session = chosen.engine.start(chosen.launch("x", "base"))
    cell = chosen.claim.cells("lab")[1]
    corpus = session.encode([prompts.corpus(0, 1000)])[0]
    asked = sweep._requests(chosen, session, cell, corpus, SPEC)
    assert [len(request.prompt) for request in asked] == [64] * 4
    # Distinct from the first block on, so that no prefix is shared.
    assert len({request.prompt[:9] for request in asked}) == 4
    assert all(32 <= token < 127 or token == 10 for r in asked for token in r.prompt)


def test_arms_get_the_same_prompts_and_seeds_others(tmp_path: Path) -> None:
    def heads(seed: int) -> list[str]:
        return [prompts.header(seed, "c", i) for i in range(20)]

    assert heads(0) == heads(0)
    assert len({*heads(0), *heads(1)}) == 40
    assert prompts.corpus(0, 5000) == prompts.corpus(0, 5000) != prompts.corpus(1, 5000)
    assert len(prompts.corpus(0, 5000)) >= 5000


def test_a_long_batch_waits_for_its_last_prefill(tmp_path: Path) -> None:
    # 4 x 64 tokens through a budget of 32 per step: lanes decode long before the last one starts.
    chosen = setting(tmp_path)
    slow = chosen.target.model_copy(
        update={"engine_args": {"max_num_batched_tokens": 32, "fake": {}}}
    )
    claim = chosen.claim.model_copy(update={"targets": {"lab": slow}})
    made = sweep.run(dataclasses.replace(chosen, claim=claim), {"arm": "base", **SPEC})
    for sample in samples(made):
        assert len(decode_window(sample.steps, sample.planned_requests)) == 10


def test_chosen_cells_only(tmp_path: Path) -> None:
    assert [s.cell for s in samples(run(tmp_path, cell="*/batch=4/*"))] == [
        "decode/batch=4/context_tokens=64"
    ]


def test_no_cell_means_no_boot(tmp_path: Path) -> None:
    chosen = setting(tmp_path, cell="nothing")
    assert sweep.run(chosen, {"arm": "base", **SPEC}) == []
    assert chosen.engine.launches == []  # type: ignore[attr-defined]


def test_tokens_from_the_prefix_cache_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Prompts without their own headers, of the same text: the engine caches all but the first.
    monkeypatch.setattr(prompts, "header", lambda *_: "")
    monkeypatch.setattr(prompts, "corpus", lambda _, characters: "a" * characters)
    chosen = setting(tmp_path)
    grid = chosen.target.grid.model_copy(update={"context_tokens": (300,)})
    target = chosen.target.model_copy(update={"grid": grid})
    claim = chosen.claim.model_copy(update={"targets": {"lab": target}})
    made = sweep.run(dataclasses.replace(chosen, claim=claim), {"arm": "base", **SPEC})
    assert [sample.cached_tokens for sample in samples(made)] == [0, 4 * 256]


def test_lost_requests_show(tmp_path: Path) -> None:
    sample = samples(run(tmp_path, fault="shed_load"))[1]
    assert (sample.planned_requests, sample.completed_requests) == (4, 3)


# Monitors


def test_the_machine_is_looked_at() -> None:
    before = monitors.snapshot()
    assert {"load_1min", "cpu_ticks", "available_mib"} <= set(before)
    values = monitors.between(before, {**monitors.snapshot(), "cpu_ticks": before["cpu_ticks"] + 5})
    assert values["available_mib"] > 0
    assert values["steal_share"] >= 0


def test_stolen_time_is_a_share() -> None:
    before = {"cpu_ticks": 100.0, "steal_ticks": 10.0}
    after = {"cpu_ticks": 200.0, "steal_ticks": 35.0, "load_1min": 1.5}
    assert monitors.between(before, after) == {"load_1min": 1.5, "steal_share": 0.25}
    assert monitors.between(before, before) == {}


def test_a_machine_that_tells_nothing_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> str:
        raise OSError("no /proc here")

    monkeypatch.setattr(monitors.Path, "read_text", fails)
    assert set(monitors.snapshot()) <= {"load_1min"}
    assert monitors.between({}, {}) == {}
