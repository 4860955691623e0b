"""Protects what the referee believes of a CUDA device: bytes, spans over all streams, graphs."""

from __future__ import annotations

import pytest
import torch

from fasttrack.correctness.device_cuda import Cuda

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]

SLEEP = 5_000_000
"""Cycles a stream sleeps: some milliseconds."""


@pytest.fixture
def device() -> Cuda:
    return Cuda()


def test_bytes_come_back_in_the_order_of_elements(device: Cuda) -> None:
    storage = device.storage(64)
    device.write(storage, 0, bytes(range(64)))
    assert device.read(storage.view(8, 8).T) == bytes(8 * i + j for j in range(8) for i in range(8))


def test_a_replaced_method_reads_nothing_else(
    device: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = device.storage(4)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: torch.zeros(4, dtype=torch.uint8))
    device.write(storage, 0, b"\1\2\3\4")
    assert device.read(storage) == b"\1\2\3\4"


def test_work_on_the_callers_stream_does_not_escape(device: Cuda) -> None:
    x = torch.randn(64, 64, device="cuda")
    with device.window(True):
        x @ x
    with device.window(True) as seen:
        x @ x
    assert seen["launches"] >= 1 and seen["late"] == 0
    assert seen["device_us"] <= seen["event_us"] + 10


def test_a_stream_that_nobody_waits_for_escapes(device: Cuda) -> None:
    side = torch.cuda.Stream()
    with device.window(True), torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
    with device.window(True) as seen, torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
    assert seen["device_us"] > seen["event_us"] + 1000


def test_a_graph_runs_on_what_its_buffers_hold(device: Cuda) -> None:
    x = torch.ones(8, device="cuda")
    made = device.capture(lambda: x * 2)
    x.fill_(21)
    device.replay()
    device.synchronise()
    assert made.tolist() == [42.0] * 8
