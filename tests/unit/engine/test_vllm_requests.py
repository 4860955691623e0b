"""Protects how tokens to force are asked for: of the engine itself where it can replay a trace,
elsewhere by a processor of ours, and never by both."""

from __future__ import annotations

import importlib

import pytest

requests = pytest.importorskip("fasttrack.engine._vllm_requests")
from fasttrack.engine.base import Request, Sampling  # noqa: E402


def test_an_engine_that_replays_traces_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_replays_traces", lambda: True)
    assert requests.forcing() == {"enable_trace_replay": True}
    assert requests._forced((3, 1)) == {"trace_decode_token_ids": [3, 1]}


def test_elsewhere_a_processor_of_ours_forces_them() -> None:
    pytest.importorskip("vllm")
    (place,) = requests.forcing()["logits_processors"]
    module, _, name = place.partition(":")
    processor = getattr(importlib.import_module(module), name)
    asked = requests.parameters(Request(prompt=(1,), sampling=Sampling(forced=(3, 1))))
    assert asked.extra_args == {importlib.import_module(module).KEY: [3, 1]}
    assert processor.__name__ == "Forced"
    assert requests.parameters(Request(prompt=(1,))).extra_args is None
