"""The answer for CI: may these result files support this change.

Owns the demands on top of verification: policy and allowed signers come from the reader (the
protected branch), never from the bundle or the pull request. Does not read diffs yet: which bundles
belong to a change is the caller's word. Read by the CLI, which prints the summary.

Exit status: 0 all files admissible and passed, 1 a rule failed, 3 inconclusive or not admissible,
6 a file was refused. The worst file decides: 6 before 1 before 3 before 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fasttrack.errors import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_PASS,
    EXIT_REJECTED,
    UsageError,
    VerificationFailed,
)
from fasttrack.schema import Policy, State, Tier
from fasttrack.verify import summary
from fasttrack.verify.steps import LISTED, Verification, verify

_SEVERITY = (EXIT_PASS, EXIT_INCONCLUSIVE, EXIT_FAIL, EXIT_REJECTED)
SIMULATED_ENGINE = "fake"


@dataclass(frozen=True)
class Decision:
    """What the gate says about one file."""

    path: Path
    status: int
    reasons: tuple[str, ...]
    """Everything that stands in the way; empty for status 0."""
    notes: tuple[str, ...] = ()
    verification: Verification | None = None
    refused: VerificationFailed | None = None

    def json_value(self) -> dict[str, Any]:
        """The JSON object of this value."""
        return {
            "file": str(self.path),
            "status": self.status,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "verification": self.verification.json_value() if self.verification else None,
            "refused": self.refused.diagnostics() if self.refused else None,
        }


@dataclass(frozen=True)
class GateResult:
    """What the gate says about all files."""

    status: int
    decisions: tuple[Decision, ...]

    def json_value(self) -> dict[str, Any]:
        """What `fasttrack gate --json` prints."""
        return {
            "status": self.status,
            "decisions": [decision.json_value() for decision in self.decisions],
        }

    def markdown(self) -> str:
        """A job summary, within GitHub's limit for comments."""
        return summary.page(
            HEADLINES[self.status],
            [
                summary.block(d.path, d.verification, d.refused, d.reasons, d.notes)
                for d in self.decisions
            ],
        )


HEADLINES = {
    EXIT_PASS: "The evidence is admissible and every rule holds",
    EXIT_INCONCLUSIVE: "The evidence does not suffice",
    EXIT_FAIL: "A rule of the claim is broken",
    EXIT_REJECTED: "A result file cannot be trusted",
}


def gate(
    bundles: Sequence[Path],
    *,
    policy: Policy,
    allowed_signers: Path | None,
    reproduced: bool = False,
) -> GateResult:
    """Judge result files under the reader's policy and list of signers.

    With `reproduced`, each file also needs a second person's signature as reproducer. Raises
    `UsageError` USE-001 when no file is given: nothing is never a pass.
    """
    if not bundles:
        raise UsageError(
            "USE-001",
            "no result file to judge",
            next_step="fasttrack validate FOLDER, then fasttrack gate FILE",
        )
    decisions = tuple(
        _judge(path, policy, allowed_signers, reproduced) for path in dict.fromkeys(bundles)
    )
    return GateResult(max((d.status for d in decisions), key=_SEVERITY.index), decisions)


def _judge(path: Path, policy: Policy, allowed_signers: Path | None, reproduced: bool) -> Decision:
    try:
        found = verify(path, allowed_signers=allowed_signers, policy=policy)
    except VerificationFailed as error:
        reason = f"{error.code} in {error.cell}: {error.cause}"
        return Decision(path, EXIT_REJECTED, (reason,), refused=error)
    reasons = _inadmissible(found, policy, reproduced)
    status = EXIT_INCONCLUSIVE if reasons else EXIT_PASS
    if found.outcome.state is not State.PASS:
        broken = found.outcome.state is State.FAIL
        status = EXIT_FAIL if broken else EXIT_INCONCLUSIVE
        reasons = [f"the outcome is {found.outcome.state.value}", *reasons]
    notes = []
    if found.own_policy.digest() != policy.digest():
        notes.append(
            "measured under another policy; every verdict here was decided again under this one"
        )
    return Decision(path, status, tuple(reasons), tuple(notes), verification=found)


def _inadmissible(found: Verification, policy: Policy, reproduced: bool) -> list[str]:
    """Every reason, so that one round of mending is enough."""
    target = found.claim.targets[found.run.target]
    reasons = list(found.outcome.not_admissible_because)
    tiers = tuple(Tier)
    if not any("role" in reason for reason in reasons) and (
        target.role not in policy.admissible_roles
    ):
        reasons.append(f"target {found.run.target} has the role {target.role}")
    if tiers.index(found.run.tier) < tiers.index(policy.minimum_tier):
        reasons.append(f"tier {found.run.tier.value} is below {policy.minimum_tier.value}")
    left_out = [stage for stage in policy.required_stages if stage not in found.run.stages]
    if left_out:
        reasons.append(f"stages left out: {', '.join(left_out)}")
    if target.engine == SIMULATED_ENGINE:
        reasons.append("the engine is simulated")
    reasons += _source(found)
    if found.identity != LISTED:
        reasons.append("nobody checked who signed: no list of allowed signers was given")
    if reproduced and not any(signer.role == "reproducer" for signer in found.signers):
        reasons.append("no independent reproducer signed")
    return list(dict.fromkeys(reasons))


def _source(found: Verification) -> list[str]:
    source = found.provenance.source
    if not source.get("commit"):
        return ["the source has no commit, so nobody can tell what was measured"]
    if source.get("dirty") is not False:
        changed = source.get("changed_files")
        return [f"the source was changed after its commit ({changed} files)"]
    return []
