"""Protects the sweep: distinct prompts of exactly the cell's length, a full window, and every step
kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from local_engine import setting

from fasttrack.engine.setting import Setting
from fasttrack.errors import RunError
from fasttrack.perf import prompts, sweep
from fasttrack.perf.window import cost_s, decode_window
from fasttrack.rules import routing, validity
from fasttrack.schema import (
    MonitorRecord,
    PathRecord,
    RefusalRecord,
    RoutingRecord,
    SampleRecord,
    SessionRecord,
    Target,
)

SPEC = {"block": 1, "position": 2, "window_steps": 10, "pairs": 4, "shape": [1, 1, 0]}


def run(folder: Path, arm: str = "candidate", **changes: Any) -> list[Any]:
    """One boot through the grid: batch 1 and 4, 64 tokens of context."""
    return sweep.run(setting(folder, **changes), {"arm": arm, **SPEC})


def samples(records: list[Any]) -> list[SampleRecord]:
    """Samples among records."""
    return [record for record in records if isinstance(record, SampleRecord)]


def test_every_cell_is_measured_once(tmp_path: Path) -> None:
    made = run(tmp_path)
    taken = sorted(samples(made), key=lambda sample: sample.planned_requests)
    assert [s.cell for s in taken] == [
        "decode/batch=1/context_tokens=64",
        "decode/batch=4/context_tokens=64",
    ]
    for sample, batch in zip(taken, (1, 4), strict=True):
        assert sample.session == "perf-b1-2-candidate"
        assert (sample.block, sample.position, sample.arm) == (1, 2, "candidate")
        assert sample.planned_requests == sample.completed_requests == batch
        assert sample.prompt_tokens == 64 * batch
        assert sample.cached_tokens == 0
        assert len(decode_window(sample.steps, batch)) == 10
        # Untrimmed: the steps of prefill and warm-up are there as well.
        assert sum(step.prefill_tokens for step in sample.steps) == 64 * batch
    assert [type(r) for r in made[-2:]] == [SessionRecord, MonitorRecord]


def test_base_tells_in_its_first_block_how_experts_are_used(tmp_path: Path) -> None:
    def routed(arm: str, block: int) -> list[RoutingRecord]:
        made = sweep.run(setting(tmp_path), {"arm": arm, **SPEC, "block": block})
        return [record for record in made if isinstance(record, RoutingRecord)]

    (record,) = routed("base", 0)
    assert (record.context_tokens, record.prompts, record.experts) == (64, 4, 8)
    assert [sum(layer) for layer in record.sent] == [4 * 64] * 2
    assert routing.entropy(record.sent) < 0.8 < routing.entropy(record.random)
    assert not routed("candidate", 0) and not routed("base", 1)


def test_each_sample_has_its_step_log(tmp_path: Path) -> None:
    made = run(tmp_path)
    paths = {r.cell: r for r in made if isinstance(r, PathRecord)}
    for sample in samples(made):
        log = paths[sample.cell]
        assert log.session == sample.session
        assert [tuple(pair) for pair in log.scheduled] == [
            (step.decode_tokens, step.prefill_tokens) for step in sample.steps
        ]


def test_long_windows_are_whole_and_say_nothing_of_what_steps_wrote(tmp_path: Path) -> None:
    made = sweep.run(setting(tmp_path), {"arm": "candidate", **SPEC, "window_steps": 512})
    for sample in samples(made):
        assert len(decode_window(sample.steps, sample.planned_requests)) == 512
    assert {str(dict(s.wrote)) for r in made if isinstance(r, PathRecord) for s in r.steps} == {
        "{}"
    }


def test_prompts_are_distinct_text_of_the_exact_length(tmp_path: Path) -> None:
    chosen = setting(tmp_path)
    session = chosen.engine.start(chosen.launch("x", "base"))
    cell = chosen.claim.cells("lab")[1]
    texts = prompts.load(None, tmp_path).texts
    corpus = session.encode([prompts.corpus(texts, 0, 1000)])[0]
    asked = sweep._prompts(chosen, session, cell, corpus, 4)
    assert [len(prompt) for prompt in asked] == [64] * 4
    # Distinct from the first block on, so that no prefix is shared.
    assert len({prompt[:9] for prompt in asked}) == 4


def test_arms_get_the_same_prompts_and_seeds_others(tmp_path: Path) -> None:
    def heads(seed: int) -> list[str]:
        return [prompts.header(seed, "c", i) for i in range(20)]

    assert heads(0) == heads(0)
    assert len({*heads(0), *heads(1)}) == 40


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


def test_settled_cells_are_left_out(tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    def settled(block: int, pairs: int) -> frozenset[str]:
        asked.append((block, pairs))
        return frozenset({"decode/batch=1/context_tokens=64"})

    chosen = dataclasses.replace(setting(tmp_path), settled=settled)
    made = sweep.run(chosen, {"arm": "base", **SPEC})
    assert [s.cell for s in samples(made)] == ["decode/batch=4/context_tokens=64"]
    assert asked == [(1, 4)]
    # Nothing is settled before the first block.
    assert len(samples(sweep.run(chosen, {"arm": "base", **SPEC, "block": 0}))) == 2


def test_sessions_of_a_block_share_the_order_of_cells_and_blocks_differ(tmp_path: Path) -> None:
    chosen = setting(tmp_path)
    grid = chosen.target.grid.model_copy(update={"batch": (1, 2, 3, 4, 5, 6)})
    target = chosen.target.model_copy(update={"grid": grid})
    claim = chosen.claim.model_copy(update={"targets": {"lab": target}})
    chosen = dataclasses.replace(chosen, claim=claim)
    orders = [
        [c.batch for c in sweep._cells(chosen, {"block": b, "pairs": 4, "shape": [1, 1, 0]})]
        for b in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == [1, 2, 3, 4, 5, 6]


def test_no_cell_means_no_boot(tmp_path: Path) -> None:
    chosen = setting(tmp_path, cell="nothing")
    assert sweep.run(chosen, {"arm": "base", **SPEC}) == []
    assert chosen.engine.launches == []  # type: ignore[attr-defined]


def test_tokens_from_the_prefix_cache_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Prompts without their own headers, of the same text: the engine caches all but the first.
    monkeypatch.setattr(prompts, "header", lambda *_: "")
    monkeypatch.setattr(prompts, "corpus", lambda *asked: "a" * asked[2])
    chosen = setting(tmp_path)
    grid = chosen.target.grid.model_copy(update={"context_tokens": (300,)})
    target = chosen.target.model_copy(update={"grid": grid})
    claim = chosen.claim.model_copy(update={"targets": {"lab": target}})
    made = sweep.run(dataclasses.replace(chosen, claim=claim), {"arm": "base", **SPEC})
    cached = {s.planned_requests: s.cached_tokens for s in samples(made)}
    # All but the very first prompt of the session.
    assert sum(cached.values()) == 4 * 256


def test_lost_requests_show(tmp_path: Path) -> None:
    (sample,) = [s for s in samples(run(tmp_path, fault="shed_load")) if s.planned_requests == 4]
    assert (sample.planned_requests, sample.completed_requests) == (4, 3)


# Workloads


def with_grid(folder: Path, engine_args: dict[str, Any] | None = None, **grid: Any) -> Setting:
    """A setting whose target has another grid."""
    chosen = setting(folder)
    values = chosen.target.json_value() | {"max_num_seqs": 65}
    values["grid"] = {"batch": [1, 4], "context_tokens": [64]} | grid
    values["engine_args"] = engine_args or {"fake": {}}
    claim = chosen.claim.model_copy(update={"targets": {"lab": Target.model_validate(values)}})
    return dataclasses.replace(chosen, claim=claim)


@pytest.mark.parametrize("workload", ["decode", "prefill", "mixed"])
@pytest.mark.parametrize("budget", [32, 512])
@pytest.mark.parametrize("arm", ["base", "candidate"])
def test_every_workload_gives_samples_that_count(
    tmp_path: Path, workload: str, budget: int, arm: str
) -> None:
    engine_args = {"max_num_batched_tokens": budget, "fake": {}}
    chosen = with_grid(tmp_path, engine_args, workload=[workload], context_tokens=[20, 64])
    made = sweep.run(chosen, {"arm": arm, **SPEC, "window_steps": 24})
    cells = {cell.id: cell for cell in chosen.claim.cells("lab")}
    paths = [record for record in made if isinstance(record, PathRecord)]
    assert {sample.cell for sample in samples(made)} == set(cells)
    for sample in samples(made):
        cell = cells[sample.cell]
        assert validity.sample_problem(sample, cell) == "", cell.id
        assert cost_s(sample.steps, cell) > 0
        if arm == "candidate":
            assert validity.exercised(sample, cell, paths)


def test_workloads_cost_different_things(tmp_path: Path) -> None:
    chosen = with_grid(tmp_path, workload=["decode", "prefill", "mixed"], batch=[4])
    made = samples(sweep.run(chosen, {"arm": "base", **SPEC, "window_steps": 24}))
    cells = {cell.id: cell for cell in chosen.claim.cells("lab")}
    cost = {cells[s.cell].workload: cost_s(s.steps, cells[s.cell]) for s in made}
    # A pure step of four lanes takes 2.5 ms there, a prompt token 20 us and half a step's share.
    assert cost["decode"] == pytest.approx(2.5e-3, rel=0.05)
    assert cost["prefill"] == pytest.approx(2e-5 + 2e-3 / 256, rel=0.05)
    assert cost["mixed"] == pytest.approx(2.5e-3 + 64 * 2e-5 / 2, rel=0.1)


def test_the_window_is_clocked_on_our_side_too(tmp_path: Path) -> None:
    for sample in samples(run(tmp_path)):
        (first, began), (last, ended) = sample.marks
        chosen = decode_window(sample.steps, sample.planned_requests)
        assert (first, last) == (chosen.start, chosen.stop)
        assert began <= ended


def test_a_size_of_parallelism_has_sessions_of_its_own(tmp_path: Path) -> None:
    chosen = with_grid(tmp_path, tensor_parallel_size=[1, 2])
    two = sweep.run(chosen, {"arm": "base", **SPEC, "shape": [2, 1, 0]})
    assert all(s.cell.endswith("/tensor_parallel_size=2") for s in samples(two))
    (session,) = [record for record in two if isinstance(record, SessionRecord)]
    assert session.variant == "tp2"
    assert session.fingerprint["tensor_parallel_size"] == 2
    one = sweep.run(chosen, {"arm": "base", **SPEC})
    assert not any("tensor" in s.cell for s in samples(one))


def test_drafts_have_sessions_of_their_own_in_which_every_lane_verifies(tmp_path: Path) -> None:
    chosen = with_grid(tmp_path, draft_tokens=[0, 3], workload=["decode", "prefill"])
    made = sweep.run(chosen, {"arm": "candidate", **SPEC, "shape": [1, 1, 3]})
    cells = {cell.id: cell for cell in chosen.claim.cells("lab")}
    paths = [record for record in made if isinstance(record, PathRecord)]
    assert [s.cell.split("/")[0] for s in samples(made)] == ["decode", "decode"]
    for sample in samples(made):
        cell = cells[sample.cell]
        assert cell.draft_tokens == 3
        assert validity.sample_problem(sample, cell) == ""
        assert validity.exercised(sample, cell, paths)
        window = decode_window(sample.steps, cell.batch, 4)
        assert len(window) == 10
        assert 10 * cell.batch < sum(sample.emitted[window.start : window.stop])
    (session,) = [record for record in made if isinstance(record, SessionRecord)]
    assert (session.variant, session.fingerprint["draft_tokens"]) == ("draft3", 3)


def test_an_engine_that_refuses_a_shape_leaves_its_words(tmp_path: Path) -> None:
    chosen = with_grid(
        tmp_path,
        {"fake": {"fault": "refuses_dcp"}},
        tensor_parallel_size=[2],
        decode_context_parallel_size=[1, 2],
    )
    spec = {"arm": "candidate", **SPEC, "shape": [2, 2, 0]}
    (told,) = sweep.run(chosen, spec)
    assert isinstance(told, RefusalRecord)
    assert (told.shape, told.code) == ("tp2-dcp2", "ENG-007")
    assert samples(sweep.run(chosen, {**spec, "arm": "base"}))


def test_an_engine_that_does_not_start_as_the_target_says_ends_the_unit(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        run(tmp_path, fault="refuse")


def test_cells_that_are_declared_unsupported_are_not_measured(tmp_path: Path) -> None:
    chosen = with_grid(tmp_path, unsupported={"*/batch=4/*": "needs more memory than it has"})
    made = samples(sweep.run(chosen, {"arm": "base", **SPEC}))
    assert [s.planned_requests for s in made] == [1]
