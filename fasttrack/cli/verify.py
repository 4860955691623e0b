"""`fasttrack verify`: check a result file from its first byte to its last number."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasttrack.claim import load_policy
from fasttrack.cli.common import JsonOption, PolicyOption, emit, talk
from fasttrack.verify import keyless, steps


def verify(
    file: Annotated[Path, typer.Argument(help="The .ftb result file.")],
    allowed_signers: Annotated[
        Path | None,
        typer.Option(
            help="OpenSSH allowed_signers file, or a snapshot of GitHub keys (JSON): also check "
            "who signed."
        ),
    ] = None,
    sigstore_identity: Annotated[
        str | None,
        typer.Option(help="Also demand a Sigstore bundle of this e-mail address or workflow."),
    ] = None,
    sigstore_issuer: Annotated[
        str, typer.Option(help="Who vouches for that identity.")
    ] = "https://token.actions.githubusercontent.com",
    sigstore_root: Annotated[
        Path | None, typer.Option(help="Trust root file. Default: the one the library carries.")
    ] = None,
    policy: PolicyOption = None,
    as_json: JsonOption = False,
) -> int:
    """Check a result file: no GPU, no network. Exit 0 if it can be trusted, 6 if not.

    Exit 0 says that the file is whole, signed, and that its verdicts follow from its records; what
    the verdicts are is printed, and judged by `gate`. With --policy the records are also decided
    under that policy.
    """
    wanted = None
    if sigstore_identity is not None:
        wanted = keyless.Wanted(sigstore_identity, sigstore_issuer, sigstore_root)
    found = steps.verify(
        file,
        sigstore=wanted,
        allowed_signers=allowed_signers,
        policy=load_policy(policy) if policy is not None else None,
    )
    console = talk()
    for step in found.steps:
        console.print(
            f"{step.number:>2} {step.name:<12} {step.detail}", markup=False, soft_wrap=True
        )
    console.print(
        f"verified; outcome {found.outcome.state.value}, "
        f"{'admissible' if found.outcome.admissible else 'not admissible'}",
        markup=False,
        soft_wrap=True,
        style="bold",
    )
    if as_json:
        emit(found.json_value(), as_json=True)
    else:
        emit(f"OK {found.manifest_sha256} {found.outcome.state.value}", as_json=False)
    return 0
