"""What a harness would see of the fake engine's steps, and the faults that only it can see.

The step log is the optimization's word; here is what the simulation really did: which names a
profiler shows, which cache blocks changed, whether the entry's result was used. Read by the fake
child; the faults are listed there.
"""

from __future__ import annotations

from fasttrack.engine.base import Answer, Evidence, Generation
from fasttrack.schema import PathStep, StateStep, Timeline

STOCK = {"stock::layer": 8, "host::sample": 1}
FAST = {"fast::layer": 2, "host::sample": 1}
BLOCKS = 128
FOREIGN = "99"
CONSTANT = ord("#")
DRIFT_NATS = 0.05
LAYERS = 2
SPAN_US, GAP_US = 20.0, 5.0


def observe(
    made: Generation, fault: str | None, entry: bool, trace: bool, state: bool, watermark: bool,
    late: bool,
) -> Evidence:  # fmt: skip
    """Evidence of one call; `entry`: the claim names one, `late`: some requests came late."""
    path = made.path
    fast = [p.path == "specialised" and fault != "logs_specialised_runs_stock" for p in path]
    answers = made.answers
    if watermark and entry and any(fast) and fault != "ignores_watermark":
        answers = tuple(_constant(answer) for answer in answers)
    if late and any(fast) and fault == "drifts_when_alternating":
        answers = tuple(_drifted(answer) for answer in answers)
    generation = made.model_copy(update={"answers": answers})
    return Evidence(
        generation=generation,
        entry_calls=sum(fast) if entry else None,
        trace=tuple(FAST if one else STOCK for one in fast) if trace else (),
        state=tuple(_state(p, f, fault) for p, f in zip(path, fast, strict=True)) if state else (),
        watched_blocks=BLOCKS if state else 0,
        blocks=BLOCKS if state else 0,
    )


def timeline(fast: bool) -> Timeline:
    """Two layers: six operators of stock, or three fused ones of which two run at once."""
    names = ["fuse", "mix", "expert"] if fast else ["norm", "qkv", "mix", "out", "route", "expert"]
    spans: list[tuple[int, float, float, int, int | None]] = []
    at = 0.0
    for layer in range(LAYERS):
        for index in range(len(names)):
            beside = fast and index == 1
            start = at - SPAN_US - GAP_US if beside else at
            spans.append((index, start, SPAN_US, int(beside), layer))
            at = at if beside else at + SPAN_US + GAP_US
    steps = [(len(spans), at - GAP_US)] * 3
    return Timeline(
        device="simulated", kinds=["FullAttention"] * LAYERS, names=names, spans=spans, steps=steps,
        plain_us=[at] * 3,
    )  # fmt: skip


def _constant(answer: Answer) -> Answer:
    """Tokens after the first come out of specialised steps."""
    ids = (*answer.token_ids[:1], *[CONSTANT] * len(answer.token_ids[1:]))
    return answer.model_copy(update={"token_ids": ids})


def _drifted(answer: Answer) -> Answer:
    moved = tuple(
        value if value is None or index < 3 else value - DRIFT_NATS
        for index, value in enumerate(answer.logprobs)
    )
    return answer.model_copy(update={"logprobs": moved})


def _state(told: PathStep, fast: bool, fault: str | None) -> StateStep:
    more = fast and fault == "writes_more_than_it_logs"
    return StateStep(
        slots=f"1-{told.requests + more}",
        rows="",
        foreign=FOREIGN if fast and fault == "writes_foreign_slot" else "",
        foreign_rows="",
        null=fast and fault == "writes_null_slot",
    )
