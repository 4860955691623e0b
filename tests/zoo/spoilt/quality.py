"""Answers that part, drift, are worse, or are not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    ItemRecord,
    Record,
    State,
)
from spoilt.cheat import Cheat


def quality(name: str, records: Sequence[Record], cell: str, state: State, reason: str,
            says: str = "") -> Cheat:  # fmt: skip
    """Spoilt answers."""
    return Cheat(name, zoo.honest_run(evals=zoo.evals(records)), cell, state, reason, says)


def answer(index: int, arm: str, repeat: str = "main") -> Any:
    """Whether a record is that answer."""
    return lambda r: r.item == f"recall-{index}" and r.arm == arm and r.repeat == repeat


def swap(index: int, position: int, gap: float | None, *, control_gap: float = 0.0) -> list[Any]:
    """Candidate's token at a position is another one; base's gap there is `gap`."""
    made = []
    for r in zoo.answers():
        if answer(index, "candidate")(r):
            ids = list(r.token_ids)
            ids[position] = 99
            r = r.model_copy(update={"token_ids": tuple(ids)})
        elif r.item == f"recall-{index}":
            gaps = list(r.gaps)
            gaps[position] = gap
            if r.repeat == "control" and gap is not None:
                gaps[position] = gap + control_gap
            r = r.model_copy(update={"gaps": tuple(gaps)})
        made.append(r)
    return made


def edited(where: Any, **changes: Any) -> list[Any]:
    """The honest answers with some changed."""
    return zoo.changed(zoo.answers(), ItemRecord, where, **changes)


def nulls(values: Sequence[float]) -> tuple[float | None, ...]:
    """The first value is not reported."""
    return (None, *values[1:])


DIVERGED = ("recall/divergence", State.FAIL, "EVAL-DIVERGED")
PARTED = ("recall/divergence", State.INCONCLUSIVE, "EVAL-PARTED")
OPEN = ("recall", State.INCOMPLETE, "EVAL-INCOMPLETE")
STOCK_NULLS = [
    r.model_copy(update={"logprobs": nulls(r.logprobs), "gaps": nulls(r.gaps)})
    if r.repeat == "control"
    else r
    for r in swap(4, 5, 1.0)
]
QUALITY = (
    quality("item_dropped_in_one_arm", [r for r in zoo.answers() if not answer(2, "candidate")(r)],
            *OPEN, "recall-2"),
    quality("different_prompts", edited(answer(2, "candidate"), prompt_sha256="f" * 64), *OPEN,
            "different prompts"),
    quality("control_of_another_prompt", edited(answer(2, "base", "control"),
            prompt_sha256="f" * 64), *OPEN, "different prompts"),
    quality("transport_error", edited(answer(2, "candidate"), error="reset"), *OPEN, "reset"),
    quality("answered_twice", [*zoo.answers(), zoo.item(2, "candidate")], *OPEN, "twice"),
    quality("one_arm_only", [r for r in zoo.answers() if r.arm == "base"], *OPEN, "one arm only"),
    quality("parts_in_many_answers", [r for i in range(20) for r in swap(i, 5, 1.0)
            if r.item == f"recall-{i}"], *DIVERGED, "20 of 20 answers part"),
    quality("parts_where_decided", swap(4, 5, 1.0), *PARTED, "recall-4 at token 5 (gap 1)"),
    quality("parts_beyond_a_tie", swap(4, 5, 0.2, control_gap=5e-4), *PARTED),
    quality("parts_where_nothing_is_known", swap(4, 5, None), *PARTED, "gap unknown"),
    quality("stock_reports_nulls", STOCK_NULLS, *PARTED, "recall-4"),
    quality("ends_early", edited(answer(4, "candidate"), token_ids=(4, 5, 6)), *PARTED,
            "recall-4 at token 3 (one ends)"),
    quality("drifts", edited(answer(4, "candidate"), logprobs=tuple(-0.8 for _ in range(8))),
            *DIVERGED, "log-probability moved"),
    quality("withholds_logprobs", edited(lambda r: r.arm == "candidate", logprobs=()), *DIVERGED,
            "160 log-probabilities that stock reports are missing"),
    quality("no_logprobs_in_either_arm", edited(lambda r: True, logprobs=()),
            "recall/divergence", State.INCOMPLETE, "EVAL-INCOMPLETE", "no log-probabilities"),
    quality("no_control", [r for r in zoo.answers() if r.repeat == "main"],
            "recall/divergence", State.INCOMPLETE, "EVAL-INCOMPLETE", "0 stock-stock controls"),
    quality("control_of_some", [r for r in zoo.answers() if not answer(7, "base", "control")(r)],
            "recall/divergence", State.INCOMPLETE, "EVAL-INCOMPLETE", "19 stock-stock controls"),
    quality("worse", edited(lambda r: r.arm == "candidate" and int(r.item[7:]) % 2 == 0, score=0.0),
            "recall/accuracy", State.INFERIOR, "EVAL-WORSE"),
    quality("loses_right_answers", edited(lambda r: r.arm == "candidate"
            and int(r.item[7:]) % 2 == 0, score=0.0), "recall/alarm", State.INCONCLUSIVE,
            "EVAL-ALARM", "8 right answers lost, 0 won"),
    quality("worse_alone_only", edited(lambda r: r.arm == "candidate" and r.repeat == "control"
            and int(r.item[7:]) % 2 == 0, score=0.0), "recall/accuracy/concurrency=1",
            State.INFERIOR, "EVAL-WORSE"),
    quality("worse_on_long_prompts", [
        r.model_copy(update={
            "prompt_tokens": 900 if int(r.item[7:]) >= 10 else 400,
            "score": 0.0 if r.arm == "candidate" and int(r.item[7:]) >= 12 else r.score,
        }) for r in zoo.answers()
    ], "recall/accuracy/prompt_tokens=900-900", State.INFERIOR, "EVAL-WORSE"),
    quality("never_asked_alone", [r for r in zoo.answers() if not (
            r.arm == "candidate" and r.repeat == "control")], "recall/accuracy/concurrency=1",
            State.INCOMPLETE, "EVAL-INCOMPLETE", "0 of 20 items"),
    quality("short_answers", edited(lambda r: r.arm == "candidate", token_ids=tuple(range(6)),
            finish_reason="stop"), "recall/length", State.FAIL, "EVAL-LENGTH", "stop 40"),
    quality("met_a_warm_cache", edited(answer(2, "candidate"), cached_tokens=64), *OPEN,
            "different caches"),
    quality("drifts_when_forced", edited(answer(4, "candidate", "replay"), gaps=(2.0, 1.5) * 4),
            "recall/replay", State.FAIL, "EVAL-DIVERGED", "p99.9 of the gap"),
    quality("withholds_replayed_numbers", edited(answer(4, "candidate", "replay"), logprobs=()),
            "recall/replay", State.FAIL, "EVAL-DIVERGED", "8 positions without"),
    quality("ignores_what_is_forced", edited(answer(4, "candidate", "replay"), token_ids=(1, 2)),
            "recall/replay", State.INCOMPLETE, "EVAL-INCOMPLETE", "did not go on"),
    quality("replays_some", [r for r in zoo.answers() if not answer(4, "candidate", "replay")(r)],
            "recall/replay", State.INCOMPLETE, "EVAL-INCOMPLETE", "1 of 20"),
    quality("maybe_worse", edited(answer(4, "candidate"), score=0.0), "recall/accuracy",
            State.INCONCLUSIVE, "EVAL-POWER"),
    quality("one_item", [r for r in zoo.answers() if r.item == "recall-1"], "recall/accuracy",
            State.INCONCLUSIVE, "EVAL-POWER"),
    quality("cannot_fail", edited(lambda r: True, score=0.0), "recall/accuracy",
            State.INSENSITIVE, "EVAL-FLOOR"),
    Cheat("no_answers", zoo.honest_run(evals=zoo.evals([])), "evals", State.MISSING, "NO-RECORDS"),
)  # fmt: skip
