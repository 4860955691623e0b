"""Protects the view of a router from outside: chosen experts are counted, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
observe = pytest.importorskip("fasttrack.engine._vllm_routing")

EXPERTS = 4


def routed(*steps: Any) -> list[list[int]]:
    """Counts per layer after engine steps, each a function."""
    seen = observe.Operators(EXPERTS)
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


class Router:
    """A router of vLLM's, as far as it is asked."""

    capture_fn: Any = None

    def set_capture_fn(self, told: Any) -> None:
        """See the class."""
        self.capture_fn = told

    def choose(self, *ids: list[int]) -> None:
        """Rows of chosen experts."""
        if self.capture_fn is not None:
            self.capture_fn(torch.tensor(ids, dtype=torch.int32))


def model(*routers: Any) -> Any:
    """With a layer for each router, and one without."""
    layers = [torch.nn.Module() for _ in range(len(routers) + 1)]
    for layer, router in zip(layers, routers, strict=False):
        layer.router = router
    return torch.nn.ModuleList(layers)


def test_routers_of_the_engine_are_asked_while_a_step_runs() -> None:
    first, second, before = Router(), Router(), []
    first.set_capture_fn(before.append)
    seen = observe.watch(model(first, second, second), EXPERTS)
    for _ in range(2):
        seen.step()
        with seen:
            first.choose([0, 1], [0, -1])  # the last row has a place without a token
            second.choose([3, 2])
    first.choose([2, 2])
    assert [counts.tolist() for counts in seen.counts] == [[4, 2, 0, 0], [0, 0, 2, 2]]
    assert len(before) == 1, "who was told before is told again"
    assert second.capture_fn is None


def test_routers_that_say_nothing_were_not_seen() -> None:
    seen = observe.watch(model(Router()), EXPERTS)
    with seen:
        pass
    assert seen.counts == []


def test_a_model_without_routers_is_watched_by_its_operators_on_a_cpu_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(observe.watch(model(), EXPERTS), observe.Operators)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(observe.CannotWatch, match="no router"):
        observe.watch(model(), EXPERTS)


def test_random_tokens_follow_the_seed_and_fill_the_vocabulary() -> None:
    made = observe.random_tokens([3000, 2], 50, 1)
    assert (
        made == observe.random_tokens([3000, 2], 50, 1) != observe.random_tokens([3000, 2], 50, 2)
    )
    assert [len(ids) for ids in made] == [3000, 2]
    assert set(made[0]) == set(range(50))
