"""`fasttrack gate`: the answer for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasttrack import gate as room
from fasttrack.claim import load_policy
from fasttrack.cli.common import JsonOption, PolicyOption, emit, talk


def gate(
    files: Annotated[list[Path], typer.Argument(help="The .ftb result files of the change.")],
    policy: PolicyOption = None,
    allowed_signers: Annotated[
        Path | None,
        typer.Option(help="OpenSSH allowed_signers file, from the protected branch."),
    ] = None,
    reproduced: Annotated[
        bool, typer.Option("--reproduced", help="Also demand an independent reproducer.")
    ] = False,
    summary: Annotated[
        Path | None,
        typer.Option(
            envvar="GITHUB_STEP_SUMMARY", help="Append the Markdown summary to this file."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Judge result files under the protected branch's policy and list of signers.

    Exit status: 0 admissible and passed, 1 a rule failed, 3 inconclusive or not admissible (every
    reason is listed), 6 a file cannot be trusted.
    """
    result = room.gate(
        files, policy=load_policy(policy), allowed_signers=allowed_signers, reproduced=reproduced
    )
    console = talk()
    console.print(room.HEADLINES[result.status], style="bold")
    for decision in result.decisions:
        console.print(
            f"{decision.path}: exit status {decision.status}", markup=False, soft_wrap=True
        )
        for line in (*decision.reasons, *decision.notes):
            console.print(f"  - {line}"[:500], markup=False, soft_wrap=True)
    text = result.markdown()
    if summary is not None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(text)
    if as_json:
        emit(result.json_value(), as_json=True)
    else:
        emit(text.rstrip("\n"), as_json=False)
    return result.status
