"""`fasttrack sign`: add a signature to a result file, on any machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fasttrack.bundle import keyless
from fasttrack.bundle import sign as signing
from fasttrack.cli.common import JsonOption, emit, talk


class Role(StrEnum):
    """What a signer vouches for."""

    AUTHOR = "author"
    REPRODUCER = "reproducer"


def sign(
    file: Annotated[Path, typer.Argument(help="The .ftb result file.")],
    key: Annotated[
        Path | None,
        typer.Option(
            envvar="FASTTRACK_SIGNING_KEY",
            help="SSH private key; or a .pub file whose key an agent or a FIDO device holds. "
            "Default: the only key of the SSH agent.",
        ),
    ] = None,
    principal: Annotated[
        str,
        typer.Option(
            envvar="FASTTRACK_PRINCIPAL",
            help="The name under which allowed_signers lists the key, usually an e-mail address.",
        ),
    ] = "development",
    role: Annotated[
        Role, typer.Option(help="`reproducer`: you measured the claim again yourself.")
    ] = Role.AUTHOR,
    development: Annotated[
        bool,
        typer.Option(
            "--development", help="Use this user's development key: integrity, not identity."
        ),
    ] = False,
    sigstore: Annotated[
        bool,
        typer.Option(
            "--sigstore",
            help="Instead of an SSH signature, add a Sigstore bundle over the same statement: in "
            "CI with the job's identity, else with a log-in. Needs the extra `sigstore`.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Sign a result file, and show how anyone can check the signature without this program."""
    if sigstore:
        name = keyless.add(file)
        emit({"file": str(file), "member": name} if as_json else name, as_json=as_json)
        return 0
    chosen = signing.development_key() if development and key is None else key
    info = signing.sign(file, key=chosen, principal=principal, role=role.value)
    lines = signing.verify_lines(file, info)
    console = talk()
    console.print(
        f"signature {info.number}: {info.principal} as {info.role}, {info.key_fingerprint}",
        markup=False,
        soft_wrap=True,
    )
    console.print("Anyone can check it with OpenSSH alone:", style="dim")
    if as_json:
        emit({**info.json_value(), "file": str(file), "check": lines}, as_json=True)
    else:
        emit(lines, as_json=False)
    return 0
