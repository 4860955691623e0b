"""From a claim to work: units with a key and a cost, before anything is measured.

Owns the tiers' amounts and the order of sessions. The plan is frozen into the bundle; what was
planned and never ran is MISSING, not absent.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fasttrack.errors import UsageError
from fasttrack.evals.task import MIN_PROMPT_TOKENS, prompt_room
from fasttrack.perf.window import PREFILL_ROUNDS
from fasttrack.schema import STAGES, Arm, Cell, Claim, Target, Tier
from fasttrack.schema._json import digest
from fasttrack.schema.claim import Shape
from fasttrack.schema.record import Stage

PLAN_SCHEMA = "fasttrack.plan/v1"
SPARE_STEPS = 8
"""Decode steps of a cell beside its window: warm-up, and the last prefill to wait for."""


@dataclass(frozen=True)
class Amounts:
    """How much a tier measures."""

    blocks: int
    """Blocks of four sessions (ABBA or BAAB), two pairs each, in the perf stage."""
    spare_blocks: int
    """Further blocks, measured only for cells of which a pair was excluded."""
    window_steps: int
    """Decode steps recorded per cell and session."""
    seeds: int
    """Input seeds per kernel cell."""
    repeats: int
    """Bitwise repeats of a kernel cell under jitter: 300 find a fault of 1 % with 95 %."""
    items: int
    """Eval items."""
    answer_tokens: int
    """Most tokens of an answer."""
    few_repeats: int
    """The same for cells of an op beside the one whose turn it is; turns go round with the seed."""


TIERS: Mapping[Tier, Amounts] = {
    Tier.SMOKE: Amounts(2, 1, 24, 6, 300, 16, 128, 6),
    Tier.STANDARD: Amounts(4, 1, 64, 10, 300, 64, 128, 300),
    Tier.FULL: Amounts(6, 2, 256, 10, 3000, 256, 128, 3000),
}

# Seconds per unit on a two-core machine with the real engine; refined by what a run measures.
BOOT_S = {"vllm": 16.0, "fake": 0.4}
PREFILL_TOKENS_PER_S = {"vllm": 1300.0, "fake": 1e9}
STEP_S = {"vllm": 0.03, "fake": 1e-4}
SPARE_S = 0.1
"""A spare block is expected to have nothing to measure."""
OP_S = {"vllm": 0.01, "fake": 0.002}
AGENT_S = {"vllm": 45.0, "fake": 0.1}
"""A replay of the shipped traces, one tree at a time; the client's own start is most of it."""
AGENT_BLOCKS: Mapping[Tier, int] = {Tier.SMOKE: 1, Tier.STANDARD: 2, Tier.FULL: 4}
"""Blocks of four sessions that replay agent traffic. Fewer than two describe and decide nothing."""


@dataclass(frozen=True)
class Unit:
    """A resumable piece of work: one record file."""

    stage: Stage
    name: str
    spec: Mapping[str, Any]
    cost_s: float

    @property
    def stem(self) -> str:
        """Its name without the key: the same unit in another run."""
        return self.name.rpartition("-")[0]


@dataclass(frozen=True)
class Plan:
    """Everything `validate` will do, in order."""

    claim: Claim
    target: str
    tier: Tier
    seed: int
    amounts: Amounts
    cells: tuple[Cell, ...]
    agent_cells: tuple[str, ...]
    """Names of the cells of agent traffic."""
    units: tuple[Unit, ...]

    def json_value(self) -> dict[str, Any]:
        """The frozen form: digests and unit names, without costs, which are only estimates."""
        return {
            "schema": PLAN_SCHEMA,
            "claim_sha256": self.claim.digest(),
            "target": self.target,
            "tier": self.tier.value,
            "seed": self.seed,
            "amounts": self.amounts.__dict__,
            "cells": [*(cell.id for cell in self.cells), *self.agent_cells],
            "units": [f"{unit.stage}/{unit.name}" for unit in self.units],
        }

    def stage(self, stage: Stage) -> tuple[Unit, ...]:
        """The units of one stage."""
        return tuple(unit for unit in self.units if unit.stage == stage)


def check_stages(names: tuple[str, ...]) -> tuple[Stage, ...]:
    """Stage names as typed; raises `UsageError` USE-001 for an unknown one."""
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise UsageError(
            "USE-001", f"no stage {unknown[0]!r}", next_step=f"choose from {', '.join(STAGES)}"
        )
    return tuple(stage for stage in STAGES if stage in names)


def check_target(claim: Claim, target: str) -> Target:
    """A target by name; raises `UsageError` CLM-004 for an unknown one."""
    if target not in claim.targets:
        raise UsageError(
            "CLM-004",
            f"{claim.name} has no target {target!r}",
            next_step=f"choose from {', '.join(claim.targets)}",
        )
    return claim.targets[target]


def amounts_of(claim: Claim, target: str, tier: Tier) -> Amounts:
    """What a tier measures of a target, which may ask for longer windows, not for shorter ones."""
    amounts = TIERS[tier]
    asked = claim.targets[target].grid.window_steps or 0
    return replace(amounts, window_steps=max(amounts.window_steps, asked))


def make(claim: Claim, target: str, tier: Tier, seed: int, agent: bool = False) -> Plan:
    """The plan of a claim on one target; `agent`: with agent traffic, whatever the tier.

    Raises `UsageError` CLM-004 for an unknown target, CLM-005 for a grid without room to decode.
    """
    check_target(claim, target)
    amounts = amounts_of(claim, target, tier)
    cells = claim.cells(target)
    _check_room(claim.targets[target], amounts)
    engine, grid = claim.targets[target].engine, claim.targets[target].grid
    boot = BOOT_S.get(engine, 60.0)
    step = STEP_S.get(engine, 0.01)
    units: list[Unit] = []

    def add(stage: Stage, name: str, cost_s: float, **spec: Any) -> None:
        key = digest({"claim": claim.digest(), "target": target, "tier": tier.value,
                      "seed": seed, "unit": name, "spec": spec})[:10]  # fmt: skip
        units.append(Unit(stage, f"{name}-{key}", spec, cost_s))

    add("isolation", "scope", 2.0, check="scope")
    add("isolation", "neighbour", 3 * boot, check="neighbour")
    add("isolation", "model", 2 * boot, check="model")
    for op in claim.scope.ops:
        calls = 12 * (8 * amounts.seeds + 40 + amounts.few_repeats) + amounts.repeats
        cost = calls * OP_S.get(engine, 0.1) + 5.0
        add("kernels", op, cost if engine == "vllm" else 1.0,
            op=op, seeds=amounts.seeds, repeats=amounts.repeats,
            few_repeats=amounts.few_repeats)  # fmt: skip
    add("kernels", "compiled", 60.0 if claim.plugin.compiled_kernels else 0.1, check="compiled")
    for arm in ("base", "candidate"):
        add("path", arm, boot + 600 * step, arm=arm)
    for arm in ("base", "candidate"):
        add("features", arm, 4 * boot + 1000 * step, arm=arm)
    for arm in ("base", "candidate"):
        steps = amounts.answer_tokens * (1 + amounts.items / 2)
        add("evals", arm, boot + steps * step,
            arm=arm, items=amounts.items, answer_tokens=amounts.answer_tokens)  # fmt: skip
    for name, external in sorted(claim.targets[target].evals.items()):
        for arm in ("base", "candidate"):
            add("evals", f"{name}-{arm}", boot + external.samples * external.answer_tokens * step,
                arm=arm, external=name)  # fmt: skip
    blocks = amounts.blocks + amounts.spare_blocks
    shapes = sorted({cell.shape for cell in cells})
    for turn, shape in enumerate(shapes):
        session = boot + sum(
            cell_cost_s(cell, amounts, engine)
            for cell in cells
            if cell.shape == shape and not grid.unsupported_because(cell.id)
        )
        for index, order in enumerate(orders(blocks, seed)):
            for position, arm in enumerate(order):
                block = turn * blocks + index
                add("perf", f"block{block}-{position}-{arm}",
                    session if index < amounts.blocks else SPARE_S,
                    block=block, position=position, arm=arm, shape=list(shape),
                    pairs=2 * amounts.blocks, window_steps=amounts.window_steps)  # fmt: skip
    traffic = claim.agent_traffic(target, tier, agent)
    if traffic is not None:
        session = boot + len(traffic.concurrency) * AGENT_S.get(engine, 60.0)
        for index, order in enumerate(orders(AGENT_BLOCKS[tier], seed)):
            for position, arm in enumerate(order):
                # Numbered on, so that every block of the stage has a number of its own.
                block = len(shapes) * blocks + index
                add("perf", f"agent{block}-{position}-{arm}", session,
                    block=block, position=position, arm=arm, agent=list(traffic.concurrency),
                    shape=list(Shape(claim.targets[target].tensor_parallel_size)))  # fmt: skip
    named = traffic.cells if traffic is not None else ()
    return Plan(claim, target, tier, seed, amounts, cells, named, tuple(units))


def cell_cost_s(cell: Cell, amounts: Amounts, engine: str) -> float:
    """Estimated seconds of one cell in one session."""
    prefill = PREFILL_TOKENS_PER_S.get(engine, 20000.0)
    step = STEP_S.get(engine, 0.01) * (1 + cell.batch / 32)
    prompts = cell.batch * cell.context_tokens / prefill
    if cell.workload == "prefill":
        return PREFILL_ROUNDS * prompts
    if cell.workload == "mixed":
        return 1.5 * (prompts + amounts.window_steps * step)
    return prompts + amounts.window_steps * step


def dropped(higher: Amounts, lower: Amounts) -> list[str]:
    """What a lower tier measures less of, in words: ``blocks: 4 instead of 6``."""
    more, less = higher.__dict__, lower.__dict__
    return [
        f"{name.replace('_', ' ')}: {less[name]} instead of {more[name]}"
        for name in more
        if less[name] < more[name]
    ]


def _check_room(target: Target, amounts: Amounts) -> None:
    """Every cell can decode its whole window after its context, and eval items fit."""
    longest = max(target.grid.context_tokens)
    lane = 1 + max(target.grid.draft_tokens)
    if longest + (amounts.window_steps + SPARE_STEPS) * lane > target.max_model_len:
        each = f" of up to {lane} tokens" if lane > 1 else ""
        raise UsageError(
            "CLM-005",
            f"impossible grid: context_tokens {longest} and {amounts.window_steps} decode steps"
            f"{each} do not fit max_model_len {target.max_model_len}",
            next_step="raise max_model_len, leave the longest context out, or ask for fewer "
            "window_steps where the tier takes less",
        )
    room = prompt_room(target.max_model_len, amounts.answer_tokens)
    if room < MIN_PROMPT_TOKENS:
        raise UsageError(
            "CLM-005",
            f"max_model_len {target.max_model_len} leaves no room for evals: their answers take up "
            f"to {amounts.answer_tokens} tokens, their prompts at least {MIN_PROMPT_TOKENS}",
            next_step=f"raise max_model_len to {target.max_model_len + MIN_PROMPT_TOKENS - room}",
        )


def orders(blocks: int, seed: int) -> tuple[tuple[Arm, Arm, Arm, Arm], ...]:
    """ABBA or BAAB per block, seeded: one of each in every two blocks, wherever looking ends."""
    abba: tuple[Arm, Arm, Arm, Arm] = ("base", "candidate", "candidate", "base")
    baab: tuple[Arm, Arm, Arm, Arm] = ("candidate", "base", "base", "candidate")
    rng = random.Random(f"order/{seed}")
    chosen = [order for _ in range(0, blocks, 2) for order in rng.sample((abba, baab), 2)]
    return tuple(chosen[:blocks])
