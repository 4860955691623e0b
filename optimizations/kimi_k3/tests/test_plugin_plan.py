"""Which path a step takes, and what is kept as evidence of it.

Protects: no step with prefill, drafts or too many rows may ever run specialised; every step is
counted and logged in the agreed format; the log is bounded and says what it dropped.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from kimi_k3.runtime import evidence
from kimi_k3.runtime.evidence import Recorder, WorkerExtension, ranges
from kimi_k3.runtime.plan import StepFacts, plan

PREPARED = (1, 2, 4, 8)
ON = "latency_specialized"


def facts(decode: int, verify: int = 0, prefill: int = 0) -> StepFacts:
    """A step with so many rows of each kind; verifications have 3 tokens, prefill rows 10."""
    requests = decode + verify + prefill
    return StepFacts(requests, decode + 3 * verify + 10 * prefill, decode, verify)


def uniform(requests: int, tokens: int) -> StepFacts:
    """A step in which every row verifies `tokens` tokens."""
    return StepFacts(requests, requests * tokens, 0, requests, tokens)


@pytest.mark.parametrize(
    ("step", "switch", "path", "reason"),
    [
        (None, ON, "profile", "no request metadata"),
        (None, "auto", "profile", "no request metadata"),
        (facts(1), "auto", "stock", "switched off"),
        (facts(0), ON, "stock", "no rows"),
        (facts(0, prefill=1), ON, "stock", "prefill"),
        (facts(3, prefill=1), ON, "stock", "prefill and decode mixed"),
        (facts(0, verify=2), ON, "stock", "draft verification"),
        (facts(2, verify=1), ON, "stock", "draft verification"),
        (facts(2, verify=1, prefill=1), ON, "stock", "draft verification"),
        (facts(9), ON, "stock", "batch above largest prepared"),
        (facts(1), ON, "specialised", "pure decode"),
        (facts(3), ON, "specialised", "pure decode"),
        (facts(8), ON, "specialised", "pure decode"),
        (uniform(2, 4), ON, "specialised", "uniform draft verification"),
        (uniform(8, 2), ON, "specialised", "uniform draft verification"),
        (uniform(2, 5), ON, "stock", "draft verification"),
        (uniform(9, 4), ON, "stock", "batch above largest prepared"),
        (uniform(2, 4), "auto", "stock", "switched off"),
    ],
)
def test_plan_table(step: StepFacts | None, switch: str, path: str, reason: str) -> None:
    found = plan(step, switch, PREPARED, tokens=4)
    assert (found.path, found.reason) == (path, reason)


def test_no_verification_is_specialised_where_none_was_prepared() -> None:
    assert plan(uniform(2, 4), ON, PREPARED).reason == "draft verification"


def test_nothing_is_specialised_before_batches_are_prepared() -> None:
    assert plan(facts(1), ON, ()).path == "stock"


def test_every_fallback_is_in_the_docstring() -> None:
    text = " ".join((plan.__doc__ or "").split())
    for words in (
        "profile run",
        "`auto`",
        "no rows",
        "prefill",
        "draft tokens",
        "largest prepared",
    ):
        assert words in text


def test_a_one_token_prompt_counts_as_prefill_tokens() -> None:
    assert StepFacts(requests=3, tokens=3, decode_rows=2, verify_rows=0).prefill_tokens == 1


def test_a_uniform_verification_prefills_nothing() -> None:
    assert uniform(3, 4).prefill_tokens == 0 and uniform(3, 4).prefill_rows == 0
    assert facts(2, verify=1).prefill_tokens == 3


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([9, 4, 3, 5, 4]) == "3-5,9"


def test_entry_format() -> None:
    recorder = Recorder(rank=1, size=2, switch=ON)
    recorder.prepared, recorder.extra_bytes = PREPARED, 77
    step = facts(2)
    slots = [torch.tensor([3, 5]), torch.tensor([4, 9])]
    recorder.record(plan(step, ON, PREPARED), step, slots, [torch.tensor([128, 129, 140])])
    recorder.record(plan(None, ON, PREPARED), None)
    found = json.loads(json.dumps(recorder.drain()))
    assert found == {
        "rank": 1,
        "size": 2,
        "switch": ON,
        "counters": {
            "path:specialised": 1,
            "reason:pure decode": 1,
            "path:profile": 1,
            "reason:no request metadata": 1,
        },
        "log": [
            {
                "step": 0,
                "path": "specialised",
                "reason": "pure decode",
                "requests": 2,
                "tokens": 2,
                "prefill_tokens": 0,
                "wrote": {"kda_slots": "3-5,9", "mla_rows": "128-129,140"},
            },
            {
                "step": 1,
                "path": "profile",
                "reason": "no request metadata",
                "requests": 0,
                "tokens": 0,
                "prefill_tokens": 0,
                "wrote": {"kda_slots": "", "mla_rows": ""},
            },
        ],
        "dropped": 0,
        "prepared_batches": [1, 2, 4, 8],
        "extra_bytes": 77,
    }


def test_draining_clears_or_not_and_steps_keep_counting() -> None:
    recorder = Recorder(0, 1, "auto")
    recorder.record(plan(None, "auto", ()), None)
    assert recorder.drain(clear=False) == recorder.drain()
    assert recorder.drain()["log"] == []
    recorder.record(plan(None, "auto", ()), None)
    assert [entry["step"] for entry in recorder.drain()["log"]] == [1]


def test_the_log_is_bounded_and_counters_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LOG_STEPS", 3)
    recorder = Recorder(0, 1, "auto")
    for _ in range(5):
        recorder.record(plan(facts(1), "auto", ()), facts(1))
    found = recorder.drain()
    assert [entry["step"] for entry in found["log"]] == [2, 3, 4]
    assert found["dropped"] == 2
    assert found["counters"]["path:stock"] == 5


def test_worker_extension_reads_the_model_and_refuses_another() -> None:
    worker = WorkerExtension()
    recorder = Recorder(0, 1, "auto")
    worker.model_runner = SimpleNamespace(get_model=lambda: SimpleNamespace(recorder=recorder))
    assert worker.fasttrack_evidence()["switch"] == "auto"
    worker.model_runner = SimpleNamespace(get_model=lambda: object())
    with pytest.raises(TypeError, match="keeps no fasttrack evidence"):
        worker.fasttrack_evidence()
