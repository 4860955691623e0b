"""Protects the eval stage: the same prompts in both arms, every item accounted for, and both asked
once more in another batch composition."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from local_engine import setting

from fasttrack.evals import run
from fasttrack.evals.pairing import pair
from fasttrack.evals.task import MIN_PROMPT_TOKENS
from fasttrack.evals.tasks import registry
from fasttrack.schema import ItemRecord, PathRecord, SessionRecord

SPEC = {"items": 5, "answer_tokens": 8}


def stage(folder: Path, arm: str, **changes: Any) -> list[Any]:
    """Records of one arm; of the candidate, after `base`'s if they are given."""
    base = changes.pop("base", ())
    here = dataclasses.replace(setting(folder, **changes), earlier=lambda: base)
    return run.run(here, {"arm": arm, **SPEC})


def items(records: list[Any]) -> list[ItemRecord]:
    """Answers among them."""
    return [record for record in records if isinstance(record, ItemRecord)]


def test_both_arms_pair_up(tmp_path: Path) -> None:
    base = stage(tmp_path, "base")
    mine = stage(tmp_path, "candidate", base=base)
    pairs = pair([*items(base), *items(mine)])
    assert len(pairs) == 5 * len(registry())
    for p in pairs:
        assert p.control is not None
        assert p.base.token_ids == p.candidate.token_ids == p.control.token_ids
        assert len(p.base.token_ids) == len(p.base.logprobs) == len(p.base.gaps) == 8
        assert p.replay is not None and p.replay_control is not None
        assert p.base.token_ids == p.replay.token_ids == p.replay_control.token_ids
        assert p.base.logprobs == p.replay.logprobs
        assert set(p.replay.ranks) == {1}
    for records in (base, mine):
        counts = Counter(r.repeat for r in items(records))
        assert counts == dict.fromkeys(("main", "control", "replay"), 5 * len(registry()))
    assert not any(r.cached_tokens for r in [*items(base), *items(mine)])
    assert all(r.prompt_tokens for r in items(mine))


def test_the_control_runs_in_smaller_batches_and_another_order(tmp_path: Path) -> None:
    base = stage(tmp_path, "base")
    main = [r for r in items(base) if r.repeat == "main"]
    control = [r for r in items(base) if r.repeat == "control"]
    assert {r.concurrency for r in main} == {4}, "the largest batch of the grid"
    assert {r.concurrency for r in control} == {run.CONTROL_CONCURRENCY}
    for task in registry():
        asked, again = ([r.item for r in part if r.eval == task.name] for part in (main, control))
        assert again == asked[::-1]
    paths = [r for r in base if isinstance(r, PathRecord)]
    assert [p.cell for p in paths] == [
        f"evals/{task.name}/{cell}"
        for task in registry()
        for cell in (
            *["main/concurrency=4"] * 2,
            *["control/concurrency=1"] * 5,
            *["replay/concurrency=1"] * 5,
        )
    ]


def test_a_lost_answer_is_recorded_and_not_dropped(tmp_path: Path) -> None:
    records = items(stage(tmp_path, "candidate", fault="shed_load"))
    records = [r for r in records if r.repeat == "main"]
    assert [r.error for r in records] == ["", "", "", "no answer", ""] * len(registry())
    assert records[3].finish_reason == "lost"


def test_seeds_change_the_items(tmp_path: Path) -> None:
    def prompts(seed: int) -> set[str]:
        return {r.prompt_sha256 for r in items(stage(tmp_path, "base", seed=seed))}

    assert prompts(1) == prompts(1)
    assert not prompts(1) & prompts(2)


def test_prompts_fit_a_short_context(tmp_path: Path) -> None:
    least = MIN_PROMPT_TOKENS + SPEC["answer_tokens"] + 1
    records = stage(tmp_path, "base", max_model_len=least)
    assert not any(r.error for r in items(records))


def test_one_session(tmp_path: Path) -> None:
    (session,) = [r for r in stage(tmp_path, "base") if isinstance(r, SessionRecord)]
    assert (session.stage, session.session, session.switch) == ("evals", "evals-base", "auto")


def test_what_base_said_is_forced_on_a_candidate_that_would_say_something_else(
    tmp_path: Path,
) -> None:
    base = stage(tmp_path, "base")
    mine = stage(tmp_path, "candidate", base=base, fault="wrong_token")
    for p in pair([*items(base), *items(mine)]):
        assert p.replay is not None
        assert p.base.token_ids == p.replay.token_ids != p.candidate.token_ids
        assert any(rank > 1 for rank in p.replay.ranks)


def test_nothing_is_forced_beside_drafts(tmp_path: Path) -> None:
    here = setting(tmp_path)
    drafting = here.target.model_copy(update={"engine_args": {"speculative_config": {}}})
    claim = here.claim.model_copy(update={"targets": {"lab": drafting}})
    records = run.run(dataclasses.replace(here, claim=claim), {"arm": "base", **SPEC})
    assert {r.repeat for r in items(records)} == {"main", "control"}
