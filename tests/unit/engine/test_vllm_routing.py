"""Protects the view of a router from outside: chosen experts are counted, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
observe = pytest.importorskip("fasttrack.engine._vllm_routing")

EXPERTS = 4


def routed(*steps: Any) -> list[list[int]]:
    """Counts per layer after engine steps, each a function."""
    seen = observe.Routing(EXPERTS)
    for step in steps:
        seen.step()
        with seen:
            step()
    return [counts.tolist() for counts in seen.counts]


SCORES = torch.tensor([[9.0, 5.0, 1.0, 0.0], [9.0, 0.0, 7.0, 1.0]])


def test_a_top_k_over_the_experts_is_counted_per_layer_and_step() -> None:
    def step() -> None:
        torch.topk(SCORES, 2, dim=-1)
        torch.topk(-SCORES, 1, dim=-1)

    assert routed(step, step) == [[4, 2, 2, 0], [0, 2, 0, 2]]


def test_other_operators_are_not_taken_for_routing() -> None:
    def step() -> None:
        torch.topk(torch.ones(2, 9), 2)  # logits of a sampler
        SCORES.argsort(-1)  # as many columns as experts
        SCORES.gt(3)
        torch.ones(2, 2).long()
        SCORES.softmax(-1)

    assert routed(step) == []


def test_a_fused_operator_that_writes_its_choice_is_counted() -> None:
    @torch.library.custom_op("fasttrack_test::route", mutates_args=("chosen",))
    def route(scores: torch.Tensor, chosen: torch.Tensor) -> None:
        chosen.copy_(torch.topk(scores, 1).indices)

    chosen = torch.zeros(2, 1, dtype=torch.int32)
    assert routed(lambda: route(SCORES, chosen)) == [[2, 0, 0, 0]]


def test_random_tokens_follow_the_seed_and_fill_the_vocabulary() -> None:
    made = observe.random_tokens([3000, 2], 50, 1)
    assert (
        made == observe.random_tokens([3000, 2], 50, 1) != observe.random_tokens([3000, 2], 50, 2)
    )
    assert [len(ids) for ids in made] == [3000, 2]
    assert set(made[0]) == set(range(50))
