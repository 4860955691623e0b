"""Protects what the vLLM child does around an engine's steps, on a stand-in for the engine.

No batch of forgotten requests stays in flight; routing that cannot be watched ends no session.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
child = pytest.importorskip("fasttrack.engine._vllm_child")


class Engine:
    """Schedules one batch ahead, as vLLM does: a step takes what an earlier one left."""

    def __init__(self, in_flight: int) -> None:
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(batch_queue=[1] * in_flight))
        self.aborted: list[str] = []
        config = SimpleNamespace(get_num_experts=lambda: 4, get_vocab_size=lambda: 8)
        parallel = SimpleNamespace(world_size=1)
        self.vllm_config = SimpleNamespace(model_config=config, parallel_config=parallel)

    def abort_request(self, names: list[str]) -> None:
        """Keep their names."""
        self.aborted += names

    def has_unfinished_requests(self) -> bool:
        """None that anybody waits for."""
        return False

    def step(self) -> list[Any]:
        """Collect a batch."""
        self.engine_core.engine_core.batch_queue.pop()
        return []

    def reset_prefix_cache(self) -> bool:
        """Nothing is cached."""
        return True


def backend(engine: Any) -> Any:
    """A child with this engine."""
    made = child.Backend()
    made._engine = engine
    return made


@pytest.mark.parametrize("in_flight", [0, 1, 2])
def test_what_is_in_flight_is_run_out(in_flight: int) -> None:
    engine = Engine(in_flight)
    backend(engine)._drop(["a", "b"])
    assert engine.aborted == ["a", "b"]
    assert not engine.engine_core.engine_core.batch_queue


def test_an_engine_that_does_not_schedule_ahead_has_no_queue() -> None:
    engine = Engine(0)
    engine.engine_core.engine_core = SimpleNamespace()
    backend(engine)._drop([])


def test_routing_that_cannot_be_watched_is_told() -> None:
    made = backend(Engine(0))
    runner = SimpleNamespace(get_model=lambda: SimpleNamespace(modules=list))
    made._llm = SimpleNamespace(collective_rpc=lambda ask: [runner])

    def refuse(*_: Any) -> None:
        raise NotImplementedError("an operator without a schema")

    made.generate = refuse
    found = made.routing([{"prompt": [1, 2]}], None)
    assert found == {
        "experts": 4, "problem": "NotImplementedError: an operator without a schema"
    }  # fmt: skip
