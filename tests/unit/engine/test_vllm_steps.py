"""Protects the count of what vLLM's scheduler planned: which tokens of a step decode.

A time per step is read as one of decoding only where every token decodes; drafts, a prompt's
chunks and tokens computed again after a preemption must not pass for it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fasttrack.engine._vllm_steps import Steps, split

REQUESTS = {name: SimpleNamespace(num_prompt_tokens=8) for name in "ab"}


def planned(
    tokens: dict[str, int],
    computed: dict[str, int],
    drafts: dict[str, int] | None = None,
    **more: Any,
) -> Any:
    """A scheduler's output: `computed` are requests known before, and their tokens so far."""
    cached = SimpleNamespace(req_ids=list(computed), num_computed_tokens=list(computed.values()))
    new = [SimpleNamespace(num_computed_tokens=0) for name in tokens if name not in computed]
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_cached_reqs=cached,
        scheduled_new_reqs=new,
        scheduled_spec_decode_tokens={name: [0] * many for name, many in (drafts or {}).items()},
        **{"preempted_req_ids": None} | more,
    )


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (planned({"a": 1, "b": 1}, {"a": 8, "b": 30}), (2, 0)),
        (planned({"a": 4, "b": 1}, {"a": 9, "b": 9}, {"a": 3}), (5, 0)),
        (planned({"a": 8}, {}), (0, 8)),
        (planned({"a": 1, "b": 1}, {"a": 7, "b": 8}), (1, 1)),
        (planned({"a": 4, "b": 1}, {"a": 9, "b": 9}), (1, 4)),
        (planned({"gone": 1, "b": 1}, {"gone": 9, "b": 9}), (1, 1)),
    ],
    ids=["decode", "drafts", "new", "last of a prompt", "computed again", "unknown"],
)
def test_what_decodes(output: Any, expected: tuple[int, int]) -> None:
    assert split(output, REQUESTS) == expected


def test_steps_are_kept_as_planned_and_what_came_of_drafts() -> None:
    coming = [
        planned({"a": 8}, {}),
        planned({}, {}),
        planned({"a": 4}, {"a": 8}, {"a": 3}, preempted_req_ids={"b"}),
    ]
    scheduler = SimpleNamespace(
        requests=REQUESTS, schedule=lambda: coming.pop(0), update_from_output=lambda *_: "updated"
    )
    steps = Steps(scheduler)
    outputs = [scheduler.schedule() for _ in range(3)]
    made = SimpleNamespace(
        num_nans_in_logits={"a": 2}, req_id_to_index={"a": 0}, sampled_token_ids=[[5, 6]]
    )
    assert scheduler.update_from_output(outputs[2], made) == "updated"
    assert steps.scheduled == [(0, 8), (4, 0)]
    assert (steps.contexts, steps.drafted) == ([8, 12], [1])
    assert steps.seen == {"preempted": 1, "nan": 2, "drafted": 3, "accepted": 1}
    steps.clear()
    assert not (steps.scheduled or steps.contexts or steps.drafted or steps.seen)
