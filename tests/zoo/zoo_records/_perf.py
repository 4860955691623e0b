"""The stage perf: engine steps, samples, routing."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

from fasttrack.plan import orders
from fasttrack.schema import (
    Arm,
    Cell,
    Claim,
    EngineStep,
    MonitorRecord,
    Record,
    RoutingRecord,
    SampleRecord,
)
from zoo_records._path import path, session
from zoo_records._run import WINDOW, claim


def engine_steps(
    batch: int, prompt_tokens: int, seconds: Iterator[float], window: int = WINDOW
) -> list[EngineStep]:
    """One prefill step, three of warm-up and `window` steady ones."""
    made, clock = [], 0.0
    for index in range(1 + 3 + window):
        duration = next(seconds)
        made.append(
            EngineStep(
                start_s=clock,
                duration_s=duration,
                decode_tokens=batch if index else 0,
                prefill_tokens=0 if index else prompt_tokens,
            )
        )
        clock += duration
    return made


def marks(steps: Sequence[EngineStep]) -> list[tuple[int, float]]:
    """The harness's clock around the window, which starts behind one step and three of warm-up."""
    took = sum(step.duration_s for step in steps[4:])
    return [(4, 50.0), (len(steps), 50.0 + 1.05 * took)]


def sample(
    cell: Cell, arm: Arm, name: str, block: int, position: int, steps: Sequence[EngineStep],
    **changes: Any,
) -> SampleRecord:  # fmt: skip
    """One cell of one session."""
    prompt = cell.batch * cell.context_tokens
    return SampleRecord(
        **{
            "cell": cell.id,
            "arm": arm,
            "session": name,
            "block": block,
            "position": position,
            "planned_requests": cell.batch,
            "completed_requests": cell.batch,
            "prompt_tokens": prompt,
            "cached_tokens": 0,
            "output_tokens": cell.batch * len(steps),
            "call_s": 1.1 * sum(step.duration_s for step in steps),
            "marks": marks(steps),
            "steps": tuple(steps),
            "emitted": [step.decode_tokens or cell.batch for step in steps],
            "contexts": [prompt + cell.batch * index for index in range(len(steps))],
            "prompts_sha256": hashlib.sha256(cell.id.encode()).hexdigest(),
            "prompt_set_sha256": "5" * 64,
            "token_evenness": 0.75,
        }
        | changes
    )


def perf(
    speedup: float = 1.5,
    *,
    the_claim: Claim | None = None,
    blocks: int = 2,
    boot_noise: float = 0.002,
    step_noise: float = 0.002,
    drift: float = 0.0,
    seed: int = 0,
    window: int = WINDOW,
) -> list[Record]:
    """All sessions of a sweep: times are log-normal per boot and per step, with a linear drift."""
    rng = random.Random(f"perf/{seed}")
    made: list[Record] = []
    count = 0
    for block, order in enumerate(orders(blocks, seed)):
        for position, arm in enumerate(order):
            name = f"perf-b{block}-{position}-{arm}"
            pace = 2e-3 / (speedup if arm == "candidate" else 1.0)
            pace *= (1 + rng.gauss(0, boot_noise)) * (1 + drift * count)
            count += 1
            made.append(session("perf", name, arm))
            quiet = {"load_1min": 1.0, "steal_share": 0.0, "foreign_cpu_share": 0.01}
            made.append(MonitorRecord(stage="perf", session=name, values=quiet))
            for cell in (the_claim or claim()).cells("lab"):

                def seconds(pace: float = pace) -> Iterator[float]:
                    while True:
                        yield pace * (1 + abs(rng.gauss(0, step_noise)))

                prompt = cell.batch * cell.context_tokens
                steps = engine_steps(cell.batch, prompt, seconds(), window)
                made.append(sample(cell, arm, name, block, position, steps))
                scheduled = [(s.decode_tokens, s.prefill_tokens) for s in steps]
                made.append(path("perf", arm, scheduled, name=name, cell=cell.id))
    return made


def _chosen(weights: Sequence[float], seed: int) -> list[list[int]]:
    """Two layers, 2000 choices each."""
    rng = random.Random(f"routing/{seed}")
    made = []
    for _ in range(2):
        drawn = rng.choices(range(len(weights)), weights, k=2000)
        made.append([drawn.count(expert) for expert in range(len(weights))])
    return made


def evenly(seed: int) -> list[list[int]]:
    """How random tokens use eight experts."""
    return _chosen([1.0] * 8, seed)


def skewed(seed: int) -> list[list[int]]:
    """How text does."""
    return _chosen([8.0, 4.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0], seed)


def routing(**changes: Any) -> RoutingRecord:
    """Prompts that prefer some experts, beside random tokens, which do not."""
    return RoutingRecord(
        **{
            "session": "perf-b0-0-base",
            "context_tokens": 64,
            "prompts": 8,
            "experts": 8,
            "sent": skewed(0),
            "random": evenly(1),
            "again": evenly(2),
        }
        | changes
    )
