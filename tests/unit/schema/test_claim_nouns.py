"""Protects the claim's own arithmetic: cells, switches, digests, and policies that make sense."""

from __future__ import annotations

from typing import Any

import pytest
import zoo_records as zoo
from pydantic import ValidationError

from fasttrack.schema import Claim, Policy
from fasttrack.schema.claim import Drafts, Grid


def test_cells_are_the_product_of_the_axes_in_a_stable_order() -> None:
    claim = zoo.claim(
        targets={
            "lab": {
                "engine": "fake",
                "role": "evidence",
                "grid": {"batch": [8, 1], "context_tokens": [64, 16]},
            }
        }
    )
    assert [cell.id for cell in claim.cells("lab")] == [
        "decode/batch=8/context_tokens=64",
        "decode/batch=1/context_tokens=64",
        "decode/batch=8/context_tokens=16",
        "decode/batch=1/context_tokens=16",
    ]


def grid(**axes: Any) -> Claim:
    """One batch and context, and further axes."""
    lab = zoo.claim(batch=(1,)).json_value()["targets"]["lab"]
    return zoo.claim(targets={"lab": {**lab, "grid": {**lab["grid"], **axes}}})


def test_context_parallelism_is_there_where_it_divides() -> None:
    made = grid(tensor_parallel_size=[1, 2, 4], decode_context_parallel_size=[1, 4])
    assert [cell.shape.name for cell in made.cells("lab")] == ["", "tp2", "tp4", "tp4-dcp4"]
    assert made.cells("lab")[-1].id.endswith(
        "/tensor_parallel_size=4/decode_context_parallel_size=4"
    )


def test_a_cell_named_twice_is_left_out_for_one_reason_in_any_order() -> None:
    globs = {"*/batch=[36]?/*": "late by name", "*/batch=??/*": "early by name"}
    for order in (globs, dict(reversed(globs.items()))):
        grid = Grid(batch=[32], context_tokens=[64], unsupported=order)
        assert grid.unsupported_because("decode/batch=32/context_tokens=64") == "early by name"
        assert not grid.unsupported_because("decode/batch=8/context_tokens=64")


def test_draft_tokens_are_for_decode_alone() -> None:
    made = grid(draft_tokens=[0, 2], workload=["decode", "prefill"])
    assert [(cell.workload, cell.draft_tokens) for cell in made.cells("lab")] == [
        ("decode", 0), ("prefill", 0), ("decode", 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "axes",
    [
        {"decode_context_parallel_size": [2]},
        {"draft_tokens": [1], "workload": ["prefill"]},
        {"draft_tokens": [-1]},
        {"draft_tokens": [3, 3]},
    ],
    ids=str,
)
def test_axes_without_a_cell_are_refused(axes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        grid(**axes)


def test_drafts_are_asked_for_as_the_engine_wants_them() -> None:
    lab = (
        grid()
        .targets["lab"]
        .model_copy(update={"drafts": Drafts(engine_args={"a": 1}, acceptance=0.5)})
    )
    told = lab.drafts.arguments(2)
    assert told["a"] == 1
    assert told["speculative_config"]["num_speculative_tokens"] == 2
    assert told["speculative_config"]["synthetic_acceptance_rates"] == [0.5, 0.25]
    assert "rejection_sample_method" not in Drafts().arguments(2)["speculative_config"]


def test_the_switch_reaches_the_engine_under_its_key() -> None:
    switch = zoo.claim().switch
    assert switch.additional_config("base") == {"decode_backend": "auto"}
    nested = switch.model_copy(update={"key": "additional_config.k3.decode"})
    assert nested.additional_config("candidate") == {"k3": {"decode": "latency_specialized"}}


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("zoo/claim.toml", True),
        ("zoo/deep/er/ops.py", True),
        ("zoo", False),
        ("other/zoo/ops.py", False),
        ("Zoo/ops.py", False),
        ("zoology/ops.py", False),
    ],
)
def test_scope_is_by_path_from_the_root(path: str, inside: bool) -> None:
    assert zoo.claim().scope.covers(path) is inside


def test_the_digest_changes_with_every_field() -> None:
    base = zoo.claim()
    assert base.digest() == zoo.claim().digest()
    for change in (
        {"name": "other"},
        {"speed": {"sentence": "slower_nowhere"}},
        {"features": {"refused": {"logprobs": "why"}}},
    ):
        assert zoo.claim(**change).digest() != base.digest()


def test_a_claim_survives_its_own_json() -> None:
    value = zoo.claim().json_value()
    assert Claim.model_validate(value).json_value() == value
    assert value["schema"] == "fasttrack.claim/v1"


@pytest.mark.parametrize(
    "change",
    [
        {"switch": {"key": "additional_config.x", "base": "a", "candidate": "a"}},
        {"switch": {"key": "decode_backend", "base": "a", "candidate": "b"}},
        {"switch": {"key": "additional_config", "base": "a", "candidate": "b"}},
        {"name": "Not A Name"},
        {"name": "../up"},
        {"targets": {}},
        {"targets": {"../up": zoo.claim().json_value()["targets"]["lab"]}},
        {"scope": {"models": [], "paths": ["x"], "ops": ["x"]}},
        {"scope": {"models": ["x"], "paths": ["x"], "ops": ["../x"]}},
        {"scope": {"models": ["x"], "paths": ["x"], "ops": ["x", "x"]}},
        {"speed": {"sentence": "faster_in_named_cells"}},
        {"speed": {"sentence": "faster_everywhere", "faster_batches": [1]}},
        {"speed": {"sentence": "slower_nowhere", "slower_margin_percent": 0}},
        {"speed": {"sentence": "slower_nowhere", "slower_margin_percent": 50}},
        {"schema": "fasttrack.claim/v2"},
    ],
    ids=str,
)
def test_claims_that_mean_nothing_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        zoo.claim(**change)


@pytest.mark.parametrize(
    "policy",
    [
        {"speed": {"level": 0.5}},
        {"speed": {"level": 0.0}},
        {"speed": {"look_pairs": [1]}},
        {"speed": {"look_pairs": [8, 4]}},
        {"speed": {"look_pairs": []}},
        {"speed": {"max_excluded_share": 1.5}},
        {"numerics": {"min_seeds": 1}},
        {"numerics": {"ratio_rms": 0}},
        {"quality": {"accuracy_margin": 0}},
        {"version": "x"},
        {"minimum_tier": "deep"},
    ],
    ids=str,
)
def test_policies_that_cannot_be_decided_by_are_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Policy.model_validate(policy)


def test_the_built_in_policy_survives_its_own_json() -> None:
    value = Policy().json_value()
    assert Policy.model_validate(value).digest() == Policy().digest()
