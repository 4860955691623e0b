"""`fasttrack plan`: what validate would do, and how long it would take."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from fasttrack import plan as planning
from fasttrack.claim import load
from fasttrack.cli.common import (
    FolderArgument,
    JsonOption,
    TargetOption,
    clock,
    emit,
    pick_target,
    talk,
)
from fasttrack.schema import STAGES, Tier


def plan(
    folder: FolderArgument,
    target: TargetOption = None,
    tier: Annotated[Tier, typer.Option(help="How much is measured.")] = Tier.SMOKE,
    seed: Annotated[int, typer.Option(min=0, help="Seed of inputs, prompts and order.")] = 0,
    as_json: JsonOption = False,
) -> int:
    """Show cells, units and the expected time of a run; measure nothing."""
    claim = load(folder).claim
    chosen = pick_target(list(claim.targets), target)
    made = planning.make(claim, chosen, tier, seed)
    total = sum(unit.cost_s for unit in made.units)
    ranks = claim.targets[chosen].tensor_parallel_size
    if as_json:
        emit(
            {
                **made.json_value(),
                "estimate_s": round(total),
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
    table = Table("stage", "units", "about", box=None)
    for stage in STAGES:
        units = made.stage(stage)
        table.add_row(stage, str(len(units)), clock(sum(unit.cost_s for unit in units)))
    table.add_row("all", str(len(made.units)), clock(total))
    console.print(table)
    console.print(f"{len(made.cells)} perf cells: {made.cells[0].id} ... {made.cells[-1].id}")
    dearest = max(made.units, key=lambda unit: unit.cost_s)
    console.print(f"dearest unit: {dearest.stage}/{dearest.name}, {clock(dearest.cost_s)}")
    emit(clock(total), as_json=False)
    return 0
