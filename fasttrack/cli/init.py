"""`fasttrack init NAME`: a new optimization that already validates as a no-op."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasttrack import scaffold
from fasttrack.cli.common import JsonOption, emit, talk


def init(
    name: Annotated[str, typer.Argument(help="Name of the optimization and of its folder.")],
    parent: Annotated[Path, typer.Option(help="Folder to create it in.")] = Path(),
    as_json: JsonOption = False,
) -> int:
    """Scaffold an optimization: claim, one kernel case, tests, and AGENTS.md with the loop."""
    written = scaffold.create(name, parent)
    folder = parent / name
    if as_json:
        emit({"folder": str(folder), "files": [str(path) for path in written]}, as_json=True)
        return 0
    console = talk()
    console.print(f"{len(written)} files written; read {folder / 'AGENTS.md'} first", markup=False)
    console.print(f"next: fasttrack validate {folder}", markup=False)
    emit(str(folder), as_json=False)
    return 0
