"""`fasttrack gate`: the answer for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fasttrack.bundle.atomic import write_bytes
from fasttrack.claim import load_policy
from fasttrack.cli.common import JsonOption, PolicyOption, emit, talk
from fasttrack.errors import UsageError
from fasttrack.gate import change, evidence, page
from fasttrack.gate.findings import GateResult
from fasttrack.verify import identity


def gate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Result files to judge by themselves, without a change."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            envvar="FASTTRACK_BASE",
            help="Tip of the protected branch: policy, signers and rules come from here.",
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Option(envvar="FASTTRACK_HEAD", help="The change to judge.")
    ] = None,
    repo: Annotated[
        Path, typer.Option(help="The repository; nothing in it is checked out or run.")
    ] = Path("."),
    policy: PolicyOption = None,
    allowed_signers: Annotated[
        Path | None,
        typer.Option(help="OpenSSH allowed_signers file, or a snapshot of GitHub keys."),
    ] = None,
    reproduced: Annotated[
        bool, typer.Option("--reproduced", help="Also demand an independent reproducer.")
    ] = False,
    summary: Annotated[
        Path | None,
        typer.Option(envvar="GITHUB_STEP_SUMMARY", help="Append the Markdown page to this file."),
    ] = None,
    comment: Annotated[
        Path | None, typer.Option(help="Write the Markdown page here, for a comment.")
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write findings as JUnit XML here.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Judge a change (--base, --head) or result files under the protected branch's rules.

    Exit status: 0 every demand is met, 1 a rule failed, 3 inconclusive or not admissible (every
    reason is listed with its code), 6 a file cannot be trusted.
    """
    if base is not None or head is not None:
        result = _change(files, base, head, repo, policy, allowed_signers, reproduced)
    else:
        result = _files(files or [], policy, allowed_signers, reproduced)
    console = talk()
    console.print(page.headline(result), style="bold")
    for decision in result.decisions:
        console.print(
            f"{decision.kind} {decision.name}: exit status {decision.status}",
            markup=False,
            soft_wrap=True,
        )
        lines = [f"{f.code} {f.text}{' (waived)' if f.waived else ''}" for f in decision.findings]
        for line in (*lines, *decision.notes):
            console.print(f"  - {line}"[:500], markup=False, soft_wrap=True)
    text = page.markdown(result)
    if summary is not None and not page.append_summary(summary, text):
        console.print(f"{summary} is full; the page is not in it", markup=False)
    if comment is not None:
        write_bytes(comment, text.encode("utf-8"))
    if junit is not None:
        write_bytes(junit, page.junit(result).encode("utf-8"))
    if as_json:
        emit(result.json_value(), as_json=True)
    else:
        emit(text.rstrip("\n"), as_json=False)
    return result.status


def _change(
    files: list[Path] | None,
    base: str | None,
    head: str | None,
    repo: Path,
    policy: Path | None,
    allowed_signers: Path | None,
    reproduced: bool,
) -> GateResult:
    if files or policy is not None or allowed_signers is not None:
        raise UsageError(
            "USE-001",
            "of a change, files come from --head and rules from --base: give neither yourself",
            next_step="fasttrack gate --base REF --head REF",
        )
    if not base or not head:
        raise UsageError(
            "USE-001", "a change has two ends", next_step="fasttrack gate --base REF --head REF"
        )
    return change.gate(repo, base, head, reproducers=int(reproduced))


def _files(
    files: list[Path], policy: Path | None, allowed_signers: Path | None, reproduced: bool
) -> GateResult:
    found = load_policy(policy)
    wanted = max(int(reproduced), found.gate.reproducers)
    demands = found.gate.model_copy(update={"reproducers": wanted})
    allowed = None if allowed_signers is None else identity.read(allowed_signers)
    return evidence.gate(
        files, evidence.Reader(found.model_copy(update={"gate": demands}), allowed)
    )
