"""Protects users of a feature: each one of the registry is seen to work where it does, and seen to
be lost where a fault takes it away.

A new feature is tested by being registered, and must name the fault of the fake engine that it
finds. The engine runs in this process: no child, no clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from local_engine import setting

from fasttrack.correctness import features
from fasttrack.correctness.features.control import measure
from fasttrack.correctness.features.probe import Facts, Feature, Probe, Refused, watch
from fasttrack.engine.setting import AS_TARGETED, Variant, path_record
from fasttrack.errors import RunError
from fasttrack.schema import Arm, Check, Policy

FOUND_BY = {
    "abort": ["abort_leaks", "wrong_token"],
    "batch_edges": ["null_slot", "wrong_token"],
    "chunked_prefill": ["wrong_token", "shed_load"],
    "finite": ["nan_state"],
    "full_context": ["truncates", "wrong_token"],
    "logprobs": ["no_logprobs", "wrong_token"],
    "lora": ["refuses_lora"],
    "parallel_samples": ["same_samples", "wrong_token"],
    "penalties": ["no_penalties"],
    "preemption": ["lost_preempted"],
    "prefix_cache": ["stale_prefix", "wrong_token"],
    "sampling": ["ignores_top_k"],
    "seeds": ["ignores_seed", "wrong_token"],
    "speculation": ["bad_drafts"],
    "stop_strings": ["lost_stop"],
    "streaming": ["lost_delta", "wrong_token"],
    "structured_output": ["broken_json"],
    "token_bias": ["no_bias"],
}
REGISTRY = {feature.name: feature for feature in features.registry()}
FAULTS = [(name, fault) for name, faults in FOUND_BY.items() for fault in faults]


def observe(feature: Feature, arm: Arm, seed: int = 0, **changes: Any) -> Facts:
    """Facts of one arm, as they come back from the file they are kept in."""
    chosen = setting(Path(), seed=seed, **changes)

    def probe(variant: Variant) -> Probe:
        return Probe(
            session=chosen.engine.start(chosen.launch(f"features-{arm}", arm, variant)),
            target=chosen.target,
            seed=seed,
            record=lambda cell, made: path_record("features", "s", "base", cell, made),
            paths=[],
        )

    control = measure(probe(AS_TARGETED))
    mine = probe(feature.boot(chosen.target))
    mine.control = control
    facts: Facts = json.loads(json.dumps(watch(feature, mine)))
    assert mine.paths and {path.cell for path in mine.paths} == {f"features/{feature.name}"}
    return facts


def broken(checks: Sequence[Check]) -> list[str]:
    """Names of the checks that do not hold."""
    return [check.name for check in checks if not check.holds]


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_feature_that_works_is_seen_to(name: str, seed: int) -> None:
    feature = REGISTRY[name]
    base, mine = observe(feature, "base", seed), observe(feature, "candidate", seed)
    alone, compared = feature.checks(base, None), feature.checks(mine, base)
    assert alone and len(compared) >= len(alone)
    assert broken(alone) == broken(compared) == []
    assert len({check.name for check in compared}) == len(compared)


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_feature_that_is_lost_is_seen_to_be(name: str, fault: str) -> None:
    feature = REGISTRY[name]
    base = observe(feature, "base")
    try:
        mine = observe(feature, "candidate", fault=fault)
    except RunError as error:
        # A request that fails is a lost feature; a boot that is refused, an undeclared refusal.
        assert error.code == ("ENG-007" if fault == "refuses_lora" else "ENG-006")
        return
    assert broken(feature.checks(mine, base))


def test_every_feature_has_a_fault_that_it_finds() -> None:
    assert set(FOUND_BY) == set(REGISTRY)
    assert all(FOUND_BY.values())


def test_policy_requires_features_that_exist() -> None:
    assert set(Policy().required_features) <= set(REGISTRY)


def test_a_feature_that_a_target_does_not_offer_is_refused_with_a_reason() -> None:
    with pytest.raises(Refused, match="longer than the step budget"):
        observe(REGISTRY["chunked_prefill"], "base", max_model_len=256)


def test_other_answers_than_base_s_are_seen_even_if_they_are_consistent() -> None:
    # Every check of the candidate alone holds; only the comparison with base shows the difference.
    for name in ("chunked_prefill", "logprobs", "prefix_cache"):
        feature = REGISTRY[name]
        mine = observe(feature, "candidate", fault="wrong_token")
        assert broken(feature.checks(mine, None)) == []
        assert "answers_agree_with_base" in broken(feature.checks(mine, observe(feature, "base")))
