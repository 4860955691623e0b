"""Protects the device's clock: each replay belongs to its step, and is told once.

Events are stand-ins: this machine has no GPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
device = pytest.importorskip("fasttrack.engine._vllm_device")


class Event:
    """Tells the milliseconds of a clock that the test moves."""

    now = 0.0

    def __init__(self) -> None:
        self.at = -1.0

    def record(self) -> None:
        self.at = Event.now

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


class Manager:
    """Graphs that take two milliseconds."""

    def run_fullgraph(self, desc: str) -> str:
        """See the class."""
        Event.now += 2.0
        return desc


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(device, "_event", Event)


class Runner:
    """A model runner that replays a graph where a step is told to."""

    def __init__(self) -> None:
        self.cudagraph_manager = Manager()

    def execute_model(self, scheduled: Any, graph: bool = True) -> None:
        """See the class."""
        if graph:
            self.cudagraph_manager.run_fullgraph("graph")


def step(tokens: int = 1) -> Any:
    """What the scheduler says of a step."""
    return SimpleNamespace(total_num_scheduled_tokens=tokens)


@pytest.mark.usefixtures("gpu")
def test_each_replay_is_told_once_and_with_its_step() -> None:
    worker = SimpleNamespace(model_runner=Runner())
    run = worker.model_runner
    device.install(worker)
    run.execute_model(step())
    run.execute_model(step(0), graph=False)  # nothing was scheduled: no step
    run.execute_model(step(), graph=False)
    Event.now += 7.0
    run.execute_model(step())
    assert device.read(worker) == {0: pytest.approx(2e-3), 2: pytest.approx(2e-3)}
    assert device.read(worker) == {}
    run.execute_model(step())
    assert list(device.read(worker)) == [0], "steps are counted from the last reading"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "runner", [None, SimpleNamespace(), SimpleNamespace(cudagraph_manager=None)]
)
def test_a_runner_without_graphs_is_not_timed(runner: Any) -> None:
    assert device.Clock(runner).read() == {}


def test_without_a_gpu_nothing_is_wrapped() -> None:
    runner = Runner()
    device.Clock(runner)
    assert "execute_model" not in vars(runner)
    assert "run_fullgraph" not in vars(runner.cudagraph_manager)


def test_of_several_ranks_the_one_that_began_last_is_told() -> None:
    late, early = {0: 2e-3, 1: 5e-3, 3: 1e-3}, {0: 4e-3, 1: 3e-3}
    assert device.together([late, early]) == {0: 2e-3, 1: 3e-3}
    assert device.together([late]) == late
    assert device.together([late, {}]) == {}
