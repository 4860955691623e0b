"""`fasttrack explain CODE`: what a code means and how to investigate."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from fasttrack.cli.common import JsonOption, emit
from fasttrack.errors import EXPLANATIONS, Explanation, UsageError
from fasttrack.gate.findings import DEMANDS
from fasttrack.schema.verdict import REASONS
from fasttrack.verify.codes import CODES


def explanations() -> dict[str, Explanation]:
    """All codes: errors, verdict reasons, reject codes and demands of the gate."""
    rejects = {code: Explanation(item.meaning, item.cure) for code, item in CODES.items()}
    demands = {code: Explanation(item.meaning, item.cure) for code, item in DEMANDS.items()}
    return {**EXPLANATIONS, **REASONS, **rejects, **demands}


def explain(
    code: Annotated[
        str, typer.Argument(help="A code of an error, verdict or rejection; or `all`.")
    ],
    as_json: JsonOption = False,
) -> int:
    """Say what a code means and how to investigate."""
    table = explanations()
    if code == "all":
        meanings = {name: item.meaning for name, item in table.items()}
        lines = "\n".join(f"{name}: {meaning}" for name, meaning in meanings.items())
        emit(meanings if as_json else lines, as_json=as_json)
        return 0
    found = table.get(code.upper())
    if found is None:
        near = difflib.get_close_matches(code.upper(), table, n=3)
        raise UsageError(
            "USE-001",
            f"no code {code!r}",
            next_step=f"fasttrack explain {near[0]}" if near else "fasttrack explain all",
        )
    if as_json:
        emit(
            {"code": code.upper(), "meaning": found.meaning, "investigate": found.investigate},
            as_json=True,
        )
    else:
        emit(f"{code.upper()}\n  {found.meaning}\n  {found.investigate}", as_json=False)
    return 0
