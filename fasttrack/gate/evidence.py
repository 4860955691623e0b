"""Result files under a reader's policy and list of signers: what stands in the way of each.

Owns the demands on a file by itself. Policy and signers come from the reader (the protected
branch), never from the file. What a change demands of its files is `change`'s. Read by `change` and
by the CLI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fasttrack.bundle.provenance import harness_digest
from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.gate.findings import Decision, Finding, GateResult
from fasttrack.schema import Policy, State, Tier
from fasttrack.schema.policy import GatePolicy
from fasttrack.verify.allowed import Allowed
from fasttrack.verify.steps import LISTED, Verification, verify

SIMULATED_ENGINE = "fake"


@dataclass(frozen=True)
class Reader:
    """Whose rules apply."""

    policy: Policy = field(default_factory=Policy)
    allowed: Sequence[Allowed] | None = None
    """Who may sign; None: nobody said, which is never enough."""


def gate(bundles: Sequence[Path], reader: Reader) -> GateResult:
    """Judge result files by themselves.

    Raises `UsageError` USE-001 when no file is given: nothing is never a pass.
    """
    if not bundles:
        raise UsageError(
            "USE-001",
            "no result file to judge",
            next_step="fasttrack validate FOLDER, then fasttrack gate FILE",
        )
    return GateResult(tuple(judge(path, str(path), reader) for path in dict.fromkeys(bundles)))


def judge(path: Path, name: str, reader: Reader) -> Decision:
    """The decision about one file, shown under a name."""
    try:
        found = verify(path, allowed_signers=reader.allowed, policy=reader.policy)
    except VerificationFailed as error:
        finding = Finding("GAT-019", f"{error.code} in {error.cell}: {error.cause}")
        return Decision("file", name, (finding,), refused=error)
    found = replace(found, path=Path(name))
    return Decision("file", name, tuple(_findings(found, reader)), _notes(found, reader), found)


def _findings(found: Verification, reader: Reader) -> list[Finding]:
    """Every one, so that one round of mending is enough."""
    policy, run = reader.policy, found.run
    target = found.claim.targets[run.target]
    told: list[tuple[str, str]] = []
    if found.outcome.state is not State.PASS:
        code = "GAT-010" if found.outcome.state is State.FAIL else "GAT-011"
        told.append((code, f"the outcome is {found.outcome.state.value}"))
    if target.role not in policy.admissible_roles:
        told.append(("GAT-012", f"target {run.target} has the role {target.role}"))
    tiers = tuple(Tier)
    if tiers.index(run.tier) < tiers.index(policy.minimum_tier):
        told.append(("GAT-013", f"tier {run.tier.value} is below {policy.minimum_tier.value}"))
    left_out = [stage for stage in policy.required_stages if stage not in run.stages]
    if left_out:
        told.append(("GAT-014", f"stages left out: {', '.join(left_out)}"))
    known = {text for _, text in told}
    told += [("GAT-014", text) for text in found.outcome.not_admissible_because
             if text not in known]  # fmt: skip
    if target.engine == SIMULATED_ENGINE:
        told.append(("GAT-015", "the engine is simulated"))
    told += [("GAT-016", text) for text in _source(found)]
    reproducers = sum(signer.role == "reproducer" for signer in found.signers)
    if reproducers < policy.gate.reproducers:
        told.append(
            ("GAT-017", f"{reproducers} of {policy.gate.reproducers} independent reproducers")
        )
    if found.identity != LISTED:
        told.append(("GAT-018", "nobody checked who signed: no list of allowed signers was given"))
    return [Finding(code, text) for code, text in told]


def _source(found: Verification) -> list[str]:
    source = found.provenance.source
    if not source.get("commit"):
        return ["the source has no commit, so nobody can tell what was measured"]
    if source.get("dirty") is not False:
        changed = source.get("changed_files")
        return [f"the source was changed after its commit ({changed} files)"]
    return []


def _notes(found: Verification, reader: Reader) -> tuple[str, ...]:
    notes = []
    if _measuring(found.own_policy) != _measuring(reader.policy):
        notes.append(
            "measured under another policy; every verdict here was decided again under this one"
        )
    if found.provenance.source.get("harness_sha256") != harness_digest():
        notes.append("measured with another build of the harness than the one that judges here")
    return tuple(notes)


def _measuring(policy: Policy) -> Policy:
    """A policy without what concerns changes only."""
    return policy.model_copy(update={"gate": GatePolicy()})
