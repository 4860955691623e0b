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


@pytest.mark.usefixtures("gpu")
def test_each_replay_is_told_once_and_with_its_step() -> None:
    step = 0
    manager = Manager()
    clock = device.Clock(SimpleNamespace(cudagraph_manager=manager), lambda: step)
    assert manager.run_fullgraph("one") == "one"
    step = 2  # a step between replayed no graph
    Event.now += 7.0
    manager.run_fullgraph("two")
    assert clock.read() == {0: pytest.approx(2e-3), 2: pytest.approx(2e-3)}
    assert clock.read() == {}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "runner", [None, SimpleNamespace(), SimpleNamespace(cudagraph_manager=None)]
)
def test_a_runner_without_graphs_is_not_timed(runner: Any) -> None:
    assert device.Clock(runner, lambda: 0).read() == {}


def test_without_a_gpu_nothing_is_wrapped() -> None:
    manager = Manager()
    device.Clock(SimpleNamespace(cudagraph_manager=manager), lambda: 0)
    assert "run_fullgraph" not in vars(manager)
