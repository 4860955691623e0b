"""`fasttrack plan`: what validate would do, and how long it would take."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fasttrack import plan as planning
from fasttrack import timings
from fasttrack.claim import load
from fasttrack.cli.common import (
    AgentOption,
    FolderArgument,
    JsonOption,
    TargetOption,
    clock,
    emit,
    pick_target,
    talk,
)
from fasttrack.engine.vllm_arguments import flags
from fasttrack.engine.vllm_arguments import of_target as vllm_arguments
from fasttrack.errors import UsageError
from fasttrack.schema import ARMS, STAGES, Claim, Target, Tier

MOST_DEAR = 3
RAY_PORT = 6379


def plan(
    folder: FolderArgument,
    target: TargetOption = None,
    tier: Annotated[Tier, typer.Option(help="How much is measured.")] = Tier.SMOKE,
    seed: Annotated[int, typer.Option(min=0, help="Seed of inputs, prompts and order.")] = 0,
    cache: Annotated[
        Path, typer.Option(help="Where earlier runs of this machine left their times.")
    ] = Path(".fasttrack"),
    agent: AgentOption = False,
    launch: Annotated[
        bool, typer.Option("--launch", help="Print the commands that start each arm, nothing else.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show cells, units and the expected time of a run; measure nothing."""
    claim = load(folder).claim
    chosen = pick_target(list(claim.targets), target)
    if launch:
        lines = _launch(claim, folder, planning.check_target(claim, chosen), chosen)
        emit({"launch": lines} if as_json else "\n".join(lines), as_json=as_json)
        return 0
    made = planning.make(claim, chosen, tier, seed, agent)
    known = timings.calibration(cache, chosen)
    cost = {stage: sum(_seconds(unit, known) for unit in made.stage(stage)) for stage in STAGES}
    total = sum(cost.values())
    ranks = claim.targets[chosen].tensor_parallel_size
    dearest = _dearest(made, known)
    smaller = _smaller(claim, chosen, made, known, agent)
    if as_json:
        emit(
            {
                **made.json_value(),
                "estimate_s": round(total),
                "estimate_by_stage_s": {stage: round(value, 1) for stage, value in cost.items()},
                "calibrated_by_units": dict(known.units),
                "dearest_cells": [{"cell": cell, "s": round(s, 1)} for cell, s in dearest],
                "smaller_tiers": smaller,
                "device_hours": round(total * ranks / 3600, 3),
                "targets": sorted(claim.targets),
            },
            as_json=True,
        )
        return 0
    console = talk()
    console.print(
        f"{claim.name} on {chosen}, tier {tier.value}, seed {seed} "
        f"(targets: {', '.join(claim.targets)})",
        markup=False,
    )
    table = Table("stage", "units", "about", "calibrated by", box=None)
    for stage in STAGES:
        table.add_row(stage, str(len(made.stage(stage))), clock(cost[stage]), _rests(known, stage))
    table.add_row("all", str(len(made.units)), clock(total), "")
    console.print(table)
    console.print(
        f"{len(made.cells)} perf cells, {made.amounts.window_steps} decode steps each: "
        f"{made.cells[0].id} ... {made.cells[-1].id}"
    )
    if made.agent_cells:
        cells = ", ".join(made.agent_cells)
        console.print(f"agent traffic, through aiperf: {cells} (docs/agent.md)", markup=False)
    for cell, seconds in dearest:
        console.print(f"dear: {cell}, at most {clock(seconds)}", markup=False)
    for name, told in smaller.items():
        console.print(f"tier {name}: {clock(told['estimate_s'])}; {', '.join(told['less'])}")
    emit(clock(total), as_json=False)
    return 0


def _rests(known: timings.Calibration, stage: str) -> str:
    """What a stage's estimate rests on."""
    units = known.units.get(stage)
    if units is None:
        return "nothing yet"
    return f"{units} earlier units" if units else "other targets"


def _seconds(unit: planning.Unit, known: timings.Calibration) -> float:
    return known.seconds(unit.stage, unit.stem, unit.cost_s)


def _launch(claim: Claim, folder: Path, target: Target, name: str) -> list[str]:
    """Shell lines: a cluster for vLLM's own executor if the target wants one, each arm, the run."""
    if target.engine != "vllm":
        raise UsageError(
            "USE-001",
            f"target {name} runs on the engine {target.engine!r}, which has no command line",
            next_step="choose a target of the engine vllm",
        )
    lines = []
    if target.engine_args.get("distributed_executor_backend") == "ray":
        lines += [
            "# on the first node",
            f"ray start --head --port={RAY_PORT}",
            "# on every other node",
            f"ray start --address=FIRST_NODE:{RAY_PORT}",
        ]
    checkpoint = target.checkpoint.name if target.checkpoint else "MODEL"
    loaded = ",".join(claim.plugin.vllm_plugins)
    for arm in ARMS:
        switch = claim.switch.additional_config(arm)
        arguments = vllm_arguments(target, claim.plugin, switch, checkpoint)
        words = [arguments.pop("model"), *flags(arguments)]
        lines += [
            f"# {arm}: what the harness starts, as a command",
            f"VLLM_PLUGINS={shlex.quote(loaded)} vllm serve {shlex.join(words)}",
        ]
    run = shlex.join(["fasttrack", "validate", str(folder), "--target", name])
    return [*lines, "# both arms through every stage; on the first node", run]


def _dearest(made: planning.Plan, known: timings.Calibration) -> list[tuple[str, float]]:
    """The dearest perf cells with their seconds over all planned sessions, the dearest first."""
    sessions = 4 * made.amounts.blocks * known.factor.get("perf", 1.0)
    engine = made.claim.targets[made.target].engine
    grid = made.claim.targets[made.target].grid
    costs = [
        (cell.id, sessions * planning.cell_cost_s(cell, made.amounts, engine))
        for cell in made.cells
        if not grid.unsupported_because(cell.id)
    ]
    return sorted(costs, key=lambda pair: -pair[1])[:MOST_DEAR]


def _smaller(
    claim: Claim, target: str, made: planning.Plan, known: timings.Calibration, agent: bool
) -> dict[str, Any]:
    """Per lower tier: its estimate, and what it measures less of."""
    tiers = list(Tier)
    told = {}
    for tier in tiers[: tiers.index(made.tier)]:
        smaller = planning.make(claim, target, tier, made.seed, agent)
        seconds = sum(_seconds(unit, known) for unit in smaller.units)
        told[tier.value] = {
            "estimate_s": round(seconds),
            "less": planning.dropped(made.amounts, smaller.amounts),
        }
    return told
