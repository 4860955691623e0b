"""Protects the feature stage: one session per arm, base's facts kept for the candidate, and errors
sorted into what is recorded and what stops the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from local_engine import setting

from fasttrack.correctness import features
from fasttrack.correctness.features.probe import Control, Feature, agree_ids, changes
from fasttrack.errors import RunError
from fasttrack.schema import FeatureRecord, PathRecord, SessionRecord

NAMES = {feature.name for feature in features.registry()}


def run(
    folder: Path,
    arm: str,
    journal: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
    **changes: Any,
) -> list[Any]:
    """The stage in one arm; `changes` are the engine's."""
    told = replace(setting(folder, **changes), journal=journal, say=say)
    return features.run(told, {"arm": arm})


def by_name(records: list[Any]) -> dict[str, FeatureRecord]:
    """Feature records by name."""
    return {r.feature: r for r in records if isinstance(r, FeatureRecord)}


def test_both_arms(tmp_path: Path) -> None:
    base, mine = run(tmp_path, "base"), run(tmp_path, "candidate")
    assert set(by_name(base)) == set(by_name(mine)) == NAMES
    for record in (*by_name(base).values(), *by_name(mine).values()):
        assert record.status == "observed"
        assert all(check.holds for check in record.checks), record
    # Only the candidate is compared with base.
    assert len(by_name(mine)["logprobs"].checks) > len(by_name(base)["logprobs"].checks)
    for records, arm in ((base, "base"), (mine, "candidate")):
        sessions = {r.variant: r for r in records if isinstance(r, SessionRecord)}
        target = setting(tmp_path).target
        assert set(sessions) == {feature.boot(target).name for feature in features.registry()}
        assert {(r.stage, r.arm) for r in sessions.values()} == {("features", arm)}
        paths = [r for r in records if isinstance(r, PathRecord)]
        assert {path.cell.removeprefix("features/") for path in paths} == NAMES | {"control"}
        assert {path.session for path in paths} == {r.session for r in sessions.values()}


@pytest.mark.parametrize("cut", [False, True])
def test_an_interrupted_unit_goes_on_with_the_boot_it_was_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    journal = tmp_path / "journal"
    (last,) = (one for one in features.registry() if one.name == "lora")

    def stopped(probe: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        others = [one for one in features.registry() if one.name != "lora"]
        broken = (*others, replace(last, observe=stopped))
        patch.setattr(features, "registry", lambda: broken)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "base", journal=journal)
    kept = sorted(journal.iterdir())
    assert kept and not [path for path in kept if "lora" in path.name]
    if cut:
        kept[0].write_bytes(kept[0].read_bytes()[:-1])
    said: list[str] = []
    records = run(tmp_path, "base", journal=journal, say=said.append)
    assert set(by_name(records)) == NAMES
    assert {r.status for r in by_name(records).values()} == {"observed"}
    boots = [line.split(":")[0] for line in said if ": starting" in line]
    assert set(boots) == {"features-base-lora", *([kept[0].stem] if cut else [])}
    # What the candidate is compared with is whole: of boots before and after.
    assert all(c.holds for r in by_name(run(tmp_path, "candidate")).values() for c in r.checks)


def test_prefixes_are_cached_by_a_boot_of_their_own_where_the_target_does_not(
    tmp_path: Path,
) -> None:
    (feature,) = (one for one in features.registry() if one.name == "prefix_cache")
    target = setting(tmp_path).target
    without = target.model_copy(update={"engine_args": {"enable_prefix_caching": False}})
    assert feature.boot(target).name == ""
    assert feature.boot(without).engine_args == {"enable_prefix_caching": True}


def test_caches_that_cannot_be_looked_at_leave_the_logits_to_look_at() -> None:
    (feature,) = (one for one in features.registry() if one.name == "finite")
    blind = {"ids": [], "gaps": [], "nan_logits": 0, "caches": None, "null": None, "tolerance": 0.0}
    seen = blind | {"caches": 0, "null": 0}
    for facts, base, holds in ((blind, blind, True), (seen, seen, True), (blind, seen, False)):
        assert all(check.holds for check in feature.checks(facts, base)) is holds
    assert not all(check.holds for check in feature.checks(blind | {"nan_logits": 1}, blind))


def test_the_candidate_is_never_compared_with_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        run(tmp_path, "candidate")
    assert caught.value.code == "RUN-003"
    run(tmp_path, "base")
    (tmp_path / "logs" / "features-base-facts.json").write_text("{")
    with pytest.raises(RunError):
        run(tmp_path, "candidate")


def test_a_request_that_fails_is_a_lost_feature(tmp_path: Path) -> None:
    run(tmp_path, "base")
    lost = by_name(run(tmp_path, "candidate", fault="shed_load"))["chunked_prefill"]
    assert lost.status == "error"
    assert lost.message == "2 answers to 3 requests"


@pytest.mark.parametrize("code", ["ENG-003", "ENG-004", "ENG-005"])
def test_an_engine_that_is_gone_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def gone(probe: Any) -> Any:
        raise RunError(code, "gone")

    broken = Feature("broken", gone, lambda facts, base: [])
    monkeypatch.setattr(features, "registry", lambda: (broken,))
    with pytest.raises(RunError) as caught:
        run(tmp_path, "base")
    assert caught.value.code == code


def test_chosen_features_only(tmp_path: Path) -> None:
    assert set(by_name(run(tmp_path, "base", cell="log*"))) == {"logprobs"}


def test_a_feature_the_target_does_not_offer_is_refused(tmp_path: Path) -> None:
    record = by_name(run(tmp_path, "base", max_model_len=256))["chunked_prefill"]
    assert record.status == "refused"
    assert record.message


@pytest.mark.parametrize(
    ("mine", "gaps", "same"),
    [
        ((1, 2, 3), (), True),
        ((1, 2), (), False),
        ((1, 2, 3, 4), (), False),
        ((1, 9, 3), (1.0, 1e-4, 1.0), True),
        ((1, 9, 9), (1.0, 1e-4, 1.0), True),
        ((1, 9, 3), (1e-4, 1.0, 1.0), False),
        ((1, 9, 3), (1.0, None, 1.0), False),
        ((1, 9, 3), (1.0,), False),
        ((), (), False),
    ],
)
def test_greedy_answers_may_part_at_a_tie_only(mine: Any, gaps: Any, same: bool) -> None:
    assert agree_ids((1, 2, 3), gaps, mine, tie=1e-3) is same
    # Without a tolerance no gap is a tie.
    assert agree_ids((1, 2, 3), gaps, mine, tie=0.0) is (mine == (1, 2, 3))


def test_a_change_of_log_probability_counts_up_to_the_parting_only() -> None:
    found = changes((1, 2, 3), (-1.0, -2.0, -3.0), (1, 2, 9), (-1.5, -2.0, -9.0))
    assert found == [0.5, 0.0]
    assert changes((1,), (None,), (1,), (-1.0,)) == [float("inf")]
    assert changes((1,), (None,), (1,), (None,)) == [0.0]


def test_tolerance_comes_from_stock_and_is_never_less_than_rounding() -> None:
    assert Control(band=0.25).tolerance("float32") == 2 * 0.25
    assert 0 < Control().tolerance("float32") < 1e-4 < Control().tolerance("bfloat16")


def test_an_engine_that_refuses_a_variant_refuses_its_features(tmp_path: Path) -> None:
    run(tmp_path, "base")
    records = run(tmp_path, "candidate", fault="refuses_lora")
    refused = by_name(records)["lora"]
    assert refused.status == "refused" and "LoRA" in refused.message
    assert {r.status for name, r in by_name(records).items() if name != "lora"} == {"observed"}
    assert "lora" not in {r.variant for r in records if isinstance(r, SessionRecord)}
    # The engine as targeted must start: its refusal stops the run.
    with pytest.raises(RunError) as caught:
        run(tmp_path, "candidate", fault="refuse")
    assert caught.value.code == "ENG-007"
