"""`fasttrack challenge`: measure a few cells again, as chance chooses, and say what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasttrack.bundle import keys
from fasttrack.bundle import sign as signing
from fasttrack.cli.common import JsonOption, emit, talk
from fasttrack.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, UsageError
from fasttrack.schema import Tier
from fasttrack.verify import challenge as room
from fasttrack.verify import steps


def challenge(
    file: Annotated[Path, typer.Argument(help="The .ftb result file to reproduce.")],
    nonce: Annotated[
        str,
        typer.Option(
            help="Any word that nobody knew when the file was made; it chooses the cells."
        ),
    ],
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Your own result file of a chosen cell (repeatable): compare and sign."),
    ] = None,
    folder: Annotated[
        str, typer.Option(help="The optimization's folder, for the printed commands.")
    ] = "FOLDER",
    tier: Annotated[Tier, typer.Option(help="How much the commands measure.")] = Tier.SMOKE,
    key: Annotated[
        Path | None,
        typer.Option(
            envvar="FASTTRACK_SIGNING_KEY",
            help="SSH key to sign with when every cell agrees; your own files carry it too.",
        ),
    ] = None,
    principal: Annotated[
        str,
        typer.Option(envvar="FASTTRACK_PRINCIPAL", help="Your name in allowed_signers."),
    ] = "development",
    as_json: JsonOption = False,
) -> int:
    """Print the commands that measure a few cells again; with --compare, compare and sign.

    Exit status: 0 printed, or every cell agrees and you signed as reproducer; 1 a cell
    contradicts the file; 3 undecided. Only agreement is signed.
    """
    if not nonce.isascii() or not nonce.isprintable() or " " in nonce or not 0 < len(nonce) <= 128:
        raise UsageError(
            "USE-001",
            "a nonce is one word of up to 128 ASCII characters",
            next_step="fasttrack challenge FILE --nonce $(openssl rand -hex 16)",
        )
    found = steps.verify(file)
    wanted = room.picks(nonce, found.manifest_sha256, found.verdicts)
    if not wanted:
        raise UsageError("USE-001", f"{file} holds no good cell that could be measured again")
    if compare:
        return _compare(file, nonce, wanted, found, compare, key, principal, as_json)
    commands = [pick.command(folder, found.run.target, tier) for pick in wanted]
    console = talk()
    console.print(f"{len(wanted)} cells of {file}, from the same commit:", markup=False)
    if as_json:
        emit(
            {
                "file": str(file),
                "nonce": nonce,
                "commit": found.provenance.source.get("commit"),
                "cells": [
                    {"stage": pick.stage, "cell": pick.cell, "seed": pick.seed, "command": command}
                    for pick, command in zip(wanted, commands, strict=True)
                ],
            },
            as_json=True,
        )
    else:
        emit("\n".join(commands), as_json=False)
    console.print(
        "then sign your files and repeat this command with --compare FILE for each, and --key",
        markup=False,
        style="dim",
    )
    return EXIT_PASS


def _compare(
    file: Path,
    nonce: str,
    wanted: tuple[room.Pick, ...],
    found: steps.Verification,
    compare: list[Path],
    key: Path | None,
    principal: str,
    as_json: bool,
) -> int:
    smalls = [_small(steps.verify(path, policy=found.own_policy)) for path in compare]
    margin = found.own_policy.speed.equivalence_margin_percent
    compared = room.compare(wanted, _small(found), smalls, margin)
    console = talk()
    for item in compared:
        console.print(
            f"{item.answer:<11} {item.pick.stage} {item.pick.cell}: {item.why}",
            markup=False,
            soft_wrap=True,
        )
    answers = {item.answer for item in compared}
    status = EXIT_PASS
    if answers != {"agrees"}:
        status = EXIT_FAIL if "contradicts" in answers else EXIT_INCONCLUSIVE
    signed = None
    if status == EXIT_PASS:
        mine = keys.find(key).public_key
        if any(item.small is None or mine not in item.small.signer_keys for item in compared):
            raise UsageError(
                "USE-001",
                "your own files are not signed with this key, so nobody can tell who measured them",
                next_step="fasttrack sign YOUR_FILE --key KEY, then repeat",
            )
        signed = signing.sign(
            file, key=key, principal=principal, role="reproducer",
            challenge=room.met(nonce, compared),
        )  # fmt: skip
        console.print(f"signed as reproducer by {signed.principal}", markup=False)
    if as_json:
        emit(
            {
                "file": str(file),
                "nonce": nonce,
                "cells": [item.json_value() for item in compared],
                "signature": signed.json_value() if signed else None,
                "status": status,
            },
            as_json=True,
        )
    else:
        emit({0: "agrees", 1: "contradicts"}.get(status, "undecided"), as_json=False)
    return status


def _small(found: steps.Verification) -> room.Small:
    source = found.provenance.source
    return room.Small(
        path=found.path,
        manifest_sha256=found.manifest_sha256,
        claim_sha256=found.run.claim_sha256,
        scope_sha256=source.get("scope_sha256"),
        dirty=source.get("dirty") is not False,
        target=found.run.target,
        seed=found.run.seed,
        cell=found.run.cell,
        stages=found.run.stages,
        verdicts=found.verdicts,
        signer_keys=frozenset(signer.public_key for signer in found.signers),
    )
