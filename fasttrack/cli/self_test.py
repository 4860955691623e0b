"""`fasttrack self-test`: the zoo of cheats and honest work, judged by this installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fasttrack.cli.common import JsonOption, emit, talk
from fasttrack.errors import EXIT_FAIL, EXIT_PASS
from fasttrack.schema import PlantResult
from fasttrack.selftest import catalogue, run
from fasttrack.selftest.catalogue import Plant


def self_test(
    only: Annotated[
        str | None, typer.Option(help="Only plants whose name matches this glob.")
    ] = None,
    zoo: Annotated[
        Path | None, typer.Option(help="A zoo other than the one of this installation.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the plants; run none.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Judge every planted cheat and every honest plant; print the kill rate.

    Exit status: 0 each was judged as expected, 1 one was not, 2 usage.
    """
    console = talk()
    if listed:
        _list(catalogue.load(catalogue.find(zoo)), as_json)
        return EXIT_PASS
    total = done = 0

    def begin(count: int) -> None:
        nonlocal total
        total = count

    def tell(plant: Plant, result: PlantResult) -> None:
        nonlocal done
        done += 1
        word = {"right": plant.expect.code or "passes", "wrong": "WRONG"}.get(result.state, "-")
        console.print(f"[{done}/{total}] {plant.id}: {word}", markup=False)
        if result.detail:
            console.print(f"    {result.detail}", markup=False, style="dim")

    found = run.run(zoo, only=only, tell=tell, begin=begin)
    emit(
        {**found.json_value(), "kill_rate": found.kill_rate}
        if as_json
        else f"self-test: {found.sentence}",
        as_json=as_json,
    )
    return EXIT_PASS if found.flawless else EXIT_FAIL


def _list(plants: tuple[Plant, ...], as_json: bool) -> None:
    if as_json:
        emit([plant.json_value() for plant in plants], as_json=True)
        return
    table = Table(box=None)
    for head in ("Plant", "Row", "Needs", "Code", "Title"):
        table.add_column(head)
    for plant in plants:
        row = "" if plant.row is None else str(plant.row)
        table.add_row(plant.id, row, plant.needs, plant.expect.code, plant.title)
    talk().print(table)
