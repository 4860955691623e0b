"""The parser: one command per module, one error handler in `common`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fasttrack import __version__
from fasttrack.cli import common
from fasttrack.cli.audit import audit
from fasttrack.cli.challenge import challenge
from fasttrack.cli.diff import diff
from fasttrack.cli.doctor import doctor
from fasttrack.cli.evals import app as evals
from fasttrack.cli.explain import explain
from fasttrack.cli.gate import gate
from fasttrack.cli.init import init
from fasttrack.cli.plan import plan
from fasttrack.cli.report import report
from fasttrack.cli.self_test import self_test
from fasttrack.cli.sign import sign
from fasttrack.cli.site import site
from fasttrack.cli.validate import validate
from fasttrack.cli.verify import verify

app = typer.Typer(
    name="fasttrack",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Prove that a specialised decode path for vLLM is correct, keeps every feature and is "
    "faster; leave one signed file that anyone can check without a GPU.",
    epilog="Exit status: 0 pass, 1 a rule failed, 2 usage, 3 inconclusive or not admissible, "
    "4 environment unmet, 5 crash, 6 verification failed, 130 interrupted. -v shows tracebacks.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


COMMANDS = (
    doctor,
    self_test,
    init,
    plan,
    validate,
    audit,
    report,
    sign,
    verify,
    gate,
    challenge,
    diff,
    site,
    explain,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(evals, name="evals")


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status instead of raising it."""
    return common.run(typer.main.get_command(app), sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
