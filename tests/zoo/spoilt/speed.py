"""Sweeps that are slower than they look, or measured something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    PathRecord,
    Record,
    SampleRecord,
    SessionRecord,
    State,
)
from spoilt.cheat import Cheat
from spoilt.path import STOCK

SMALL = "decode/batch=1/context_tokens=64"
LARGE = "decode/batch=8/context_tokens=64"


def timed(name: str, records: Sequence[Record], cell: str, state: State, reason: str,
          says: str = "", **claim: Any) -> Cheat:  # fmt: skip
    """A spoilt sweep."""
    return Cheat(name, zoo.honest_run(perf=records), cell, state, reason, says, claim)


def measured(where: Any = None, **changes: Any) -> list[Any]:
    """The honest sweep with some samples changed."""
    return zoo.changed(zoo.perf(), SampleRecord, where, **changes)


def fallen_back(records: list[Any]) -> list[Any]:
    """One candidate session ran stock in one step of its window."""
    made = []
    for r in records:
        if isinstance(r, PathRecord) and r.session == "perf-b0-1-candidate" and "=8/" in r.cell:
            told = [*r.steps[:8], r.steps[8].model_copy(update=STOCK), *r.steps[9:]]
            r = r.model_copy(update={"steps": told})
        made.append(r)
    return made


def other_build(records: list[Any], name: str = "candidate") -> list[Any]:
    """Sessions of an arm ran another build."""
    told = {"engine": "fake-2", "max_model_len": 2048, "timer": "perf_counter"}
    return zoo.changed(records, SessionRecord, lambda r: r.arm == name, fingerprint=told)


EVERY_CANDIDATE = measured(lambda r: r.arm == "candidate", cached_tokens=64)
SENTENCE = {"speed": {"sentence": "slower_nowhere"}}
SPEED = (
    timed("equal_arms", zoo.perf(1.0), "sentence", State.FAIL, "SPD-SENTENCE", SMALL),
    timed("equal_arms_cell", zoo.perf(1.0), SMALL, State.EQUIVALENT, "SPD-EQUIVALENT"),
    timed("slower", zoo.perf(0.8), LARGE, State.SLOWER, "SPD-SLOWER"),
    timed("slower_somewhere", zoo.perf(0.8), "sentence", State.FAIL, "SPD-SENTENCE", LARGE,
          **SENTENCE),
    timed("slightly_slower_than_the_margin", zoo.perf(0.95), "sentence", State.FAIL,
          "SPD-SENTENCE", LARGE, **SENTENCE),
    timed("too_noisy_to_say", zoo.perf(1.05, boot_noise=0.2), SMALL, State.INCONCLUSIVE,
          "SPD-NOISE"),
    timed("from_the_prefix_cache", EVERY_CANDIDATE, SMALL, State.INVALID, "VAL-TOKENS",
          "64 prompt tokens came from the prefix cache"),
    timed("shed_load", measured(lambda r: r.arm == "candidate", completed_requests=0), SMALL,
          State.INVALID, "VAL-TOKENS", "0 of 1 requests ran"),
    timed("smaller_batch", measured(lambda r: "=8/" in r.cell, planned_requests=4,
          completed_requests=4), LARGE, State.INVALID, "VAL-TOKENS", "4 requests for batch 8"),
    timed("shorter_prompts", measured(lambda r: r.arm == "candidate", prompt_tokens=32), SMALL,
          State.INVALID, "VAL-TOKENS", "32 prompt tokens instead of the cell's"),
    timed("short_window", zoo.perf(window=7), SMALL, State.INVALID, "VAL-TOKENS",
          "only 7 steady decode steps"),
    timed("another_build", other_build(zoo.perf()), SMALL, State.INVALID, "VAL-ENGINE", "engine"),
    timed("another_build_sentence", other_build(zoo.perf()), "sentence", State.INCONCLUSIVE,
          "SPD-SENTENCE", "INVALID"),
    timed("switch_not_in_effect", zoo.changed(zoo.perf(), SessionRecord,
          lambda r: r.session == "perf-b0-1-candidate", switch="auto"), SMALL, State.INVALID,
          "VAL-ENGINE", "'auto'"),
    timed("stock_step_in_the_window", fallen_back(zoo.perf()), LARGE, State.NOT_EXERCISED,
          "PATH-NONE", "perf-b0-1-candidate"),
    timed("stock_step_in_the_window_sentence", fallen_back(zoo.perf()), "sentence", State.FAIL,
          "SPD-SENTENCE", "NOT_EXERCISED"),
    timed("cell_left_out", [r for r in zoo.perf() if getattr(r, "cell", "") != LARGE], LARGE,
          State.MISSING, "NO-RECORDS"),
    timed("cell_left_out_sentence", [r for r in zoo.perf() if getattr(r, "cell", "") != LARGE],
          "sentence", State.INCONCLUSIVE, "SPD-SENTENCE", "MISSING"),
    timed("one_block_only", zoo.perf(blocks=1), SMALL, State.INCONCLUSIVE, "SPD-PAIRS",
          "2 valid pairs of 4"),
    timed("candidate_without_base", [r for r in zoo.perf() if getattr(r, "arm", "") != "base"],
          SMALL, State.INCONCLUSIVE, "SPD-PAIRS"),
    Cheat("other_stage_of_another_build",
          [*zoo.honest_run(features=other_build(zoo.features()))], SMALL, State.INVALID,
          "VAL-ENGINE", "engine"),
)  # fmt: skip
