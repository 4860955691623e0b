"""`fasttrack validate`: run a claim through every stage and leave one signed result file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from fasttrack import pipeline
from fasttrack.bundle import sign as signing
from fasttrack.bundle.reader import open_bundle
from fasttrack.claim import load, load_policy
from fasttrack.cli.common import (
    AgentOption,
    Bar,
    DataOption,
    FolderArgument,
    JsonOption,
    PolicyOption,
    TargetOption,
    data_files,
    emit,
    exit_status,
    pick_target,
    talk,
)
from fasttrack.errors import UsageError
from fasttrack.plan import check_stages
from fasttrack.report import build, terminal
from fasttrack.schema import STAGES, Tier
from fasttrack.schema.verdict import GOOD


def validate(
    folder: FolderArgument,
    target: TargetOption = None,
    tier: Annotated[Tier, typer.Option(help="How much is measured.")] = Tier.SMOKE,
    seed: Annotated[int, typer.Option(min=0, help="Seed of inputs, prompts and order.")] = 0,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this stage (repeatable); not admissible.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave this stage out (repeatable); not admissible.")
    ] = None,
    cell: Annotated[
        str | None,
        typer.Option(help="Only cells whose name matches this glob; implies not admissible."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            help="Branch the change is compared with. Default: the pull request's, or the default "
            "branch."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Measure the perf stage on one node of this Ray cluster, e.g. HOST:6379 or auto.",
        ),
    ] = None,
    data: DataOption = None,
    agent: AgentOption = False,
    aiperf: Annotated[
        Path | None,
        typer.Option(
            envvar="FASTTRACK_AIPERF",
            help="The program aiperf, in an environment of its own. Default: .fasttrack/aiperf, or "
            "on the path.",
        ),
    ] = None,
    policy: PolicyOption = None,
    key: Annotated[
        Path | None,
        typer.Option(help="SSH private key to sign with. Default: this machine's development key."),
    ] = None,
    principal: Annotated[
        str, typer.Option(help="Name the signature is made under, as in allowed_signers.")
    ] = "development",
    runs: Annotated[Path, typer.Option(help="Where run folders are kept.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="Where the result file goes.")] = Path("submissions"),
    cache: Annotated[Path, typer.Option(help="Where built checkpoints are kept.")] = Path(
        ".fasttrack"
    ),
    timeout: Annotated[
        float,
        typer.Option(
            min=1.0, help="Seconds one call to an engine, or one answer of an eval, may take."
        ),
    ] = 900.0,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Units of work at once: ops of kernels, and engines of the other stages, on GPUs "
            "of their own where there are some. Perf is timed, so it has no neighbour.",
        ),
    ] = 1,
    together: Annotated[
        int,
        typer.Option(
            min=1,
            max=4,
            metavar="N",
            help="Engines of a perf block that boot at once: each is measured while the others are "
            "idle, on GPUs of its own where there are enough, else beside them in memory.",
        ),
    ] = 1,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Throw away an unfinished run of the same inputs.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Run a claim through every stage; continue an interrupted run.

    Exit status: 0 every rule passed, 1 a rule failed, 2 usage, 3 inconclusive, 4 environment,
    5 crash.
    """
    if ray is not None and together > 1:
        raise UsageError(
            "USE-001", "--together is of this machine, --ray of others", next_step="name one"
        )
    frozen = load(folder)
    stages = check_stages(tuple(only or STAGES))
    left_out = check_stages(tuple(skip or ()))
    options = pipeline.Options(
        target=pick_target(list(frozen.claim.targets), target),
        tier=tier,
        seed=seed,
        stages=tuple(stage for stage in stages if stage not in left_out),
        cell=cell or None,
        runs=runs,
        out=out,
        cache=cache,
        timeout_s=timeout,
        fresh=fresh,
        command=("fasttrack", *sys.argv[1:]),
        policy=load_policy(policy),
        base=base,
        ray=ray,
        data=data_files(data),
        jobs=jobs,
        together=together,
        agent=agent,
        aiperf=aiperf,
    )
    bar = Bar()
    try:
        result = pipeline.validate(frozen, options, bar)
    finally:
        bar.close()
    info = signing.sign(result.bundle, key=key or signing.development_key(), principal=principal)
    console = talk()
    with open_bundle(result.bundle) as bundle:
        report = build.build(bundle)
    terminal.show(report, console, result.bundle)
    console.print(f"signed by {info.principal} ({info.key_fingerprint})", markup=False)
    console.print(f"verify: fasttrack verify {shlex.quote(str(result.bundle))}", markup=False)
    if as_json:
        emit(
            {
                "outcome": result.outcome.json_value(),
                "bundle": str(result.bundle),
                "run": str(result.folder),
                "open": [
                    {
                        "code": verdict.reason,
                        "cell": verdict.cell,
                        "state": verdict.state.value,
                        "deciding": verdict.deciding,
                        "cause": verdict.detail,
                        "next": verdict.next,
                    }
                    for verdict in result.verdicts
                    if verdict.state not in GOOD
                ][:50],
            },
            as_json=True,
        )
    else:
        emit(str(result.bundle), as_json=False)
    return exit_status(result.outcome)
