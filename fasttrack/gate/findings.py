"""Every demand of the gate, and what it says of one file, claim or change.

Owns the table behind `GAT-` codes and the arithmetic of exit statuses. Read by every module of this
room and by `fasttrack explain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fasttrack.errors import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_PASS,
    EXIT_REJECTED,
    VerificationFailed,
)
from fasttrack.verify.steps import Verification

_SEVERITY = (EXIT_PASS, EXIT_INCONCLUSIVE, EXIT_FAIL, EXIT_REJECTED)


@dataclass(frozen=True)
class Demand:
    """What a code means, what to do, and the exit status of a change that does not meet it."""

    meaning: str
    cure: str
    status: int = EXIT_INCONCLUSIVE


_MEASURE = "Commit, run `fasttrack validate` and `fasttrack sign`, and add the new result file."
_WAIVER = "A maintainer writes and signs the waiver anew: submissions/README.md says how."

DEMANDS: dict[str, Demand] = {
    "GAT-001": Demand(
        "The change touches an optimization and brings no result file for it.", _MEASURE
    ),
    "GAT-002": Demand(
        "A file that may change only under a claim is in no claim's scope.",
        "Add it to [scope].paths of the optimization's claim.toml, or take it out of the change.",
    ),
    "GAT-003": Demand(
        "Files outside the optimization's scope change together with it, so its evidence says "
        "nothing about them.",
        "Put them into a change of their own, or widen [scope].paths and measure again.",
    ),
    "GAT-004": Demand(
        "A claim.toml of the change cannot be read, or two claims have one name.",
        "`fasttrack plan FOLDER` names the line.",
    ),
    "GAT-005": Demand(
        "The result file is stale: in-scope files changed after it was measured.", _MEASURE
    ),
    "GAT-006": Demand(
        "The result file is about something else: another claim, or another change's files.",
        "Remove it, and add the one that was measured from these files.",
    ),
    "GAT-007": Demand(
        "claim.toml says something else than the claim that was frozen and measured.", _MEASURE
    ),
    "GAT-008": Demand(
        "The protected branch changed in-scope files since this change left it. What a merge would "
        "give was never measured.",
        "Rebase. " + _MEASURE,
    ),
    "GAT-009": Demand(
        "The change alters the rules it is judged by: policy or signers. The protected branch's "
        "own were used.",
        "Put policy and signers into a change of their own.",
    ),
    "GAT-010": Demand(
        "A deciding rule is broken under the protected branch's policy.",
        "`fasttrack report FILE` names rule, cell and next command.",
        EXIT_FAIL,
    ),
    "GAT-011": Demand(
        "Something that must be shown stayed open: inconclusive, missing or invalid.",
        "`fasttrack report FILE` names rule, cell and next command.",
    ),
    "GAT-012": Demand(
        "The target's role is not one that policy admits as evidence.",
        "Measure on a target with the role `evidence`.",
    ),
    "GAT-013": Demand(
        "The tier is below the one policy demands.", "Measure again with a higher `--tier`."
    ),
    "GAT-014": Demand(
        "The run left something out on request: stages or cells.",
        "Run `fasttrack validate FOLDER` without --only, --skip and --cell.",
    ),
    "GAT-015": Demand(
        "The engine is simulated: its numbers are made up.", "Measure on a real engine."
    ),
    "GAT-016": Demand(
        "Nobody can tell which files were measured: no commit, or changed after it.",
        "Commit everything, then measure again.",
    ),
    "GAT-017": Demand(
        "Fewer independent reproducers signed than policy demands.",
        "Another person runs `fasttrack challenge FILE` and signs what they find.",
    ),
    "GAT-018": Demand(
        "Nobody checked who signed: there is no list of allowed signers.",
        "A maintainer adds submissions/allowed_signers to the protected branch.",
    ),
    "GAT-019": Demand(
        "A result file cannot be trusted.",
        "`fasttrack explain` knows the VER- code beside it.",
        EXIT_REJECTED,
    ),
    "GAT-020": Demand("A waiver is malformed or not signed.", _WAIVER),
    "GAT-021": Demand("A waiver has expired.", _WAIVER),
    "GAT-022": Demand(
        "A waiver names a demand that does not exist or that policy does not let anyone waive.",
        "Meet the demand.",
    ),
    "GAT-023": Demand(
        "A waiver's approver is not one whom the protected branch lists for waivers, or did not "
        "sign these words.",
        _WAIVER,
    ),
    "GAT-024": Demand(
        "A waiver was approved by somebody who signed the evidence it is about.",
        "Another maintainer approves it.",
    ),
    "GAT-025": Demand(
        "A waiver is about other files than this change has now.", _WAIVER
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One demand that is not met; `waived` tells by whom it was set aside."""

    code: str
    text: str
    waived: str = ""

    @property
    def status(self) -> int:
        """The exit status it asks for."""
        return EXIT_PASS if self.waived else DEMANDS[self.code].status

    def json_value(self) -> dict[str, Any]:
        """The JSON object of this value."""
        return {
            "code": self.code,
            "cause": self.text,
            "next": DEMANDS[self.code].cure,
            "status": self.status,
            "waived": self.waived or None,
        }


@dataclass(frozen=True)
class Decision:
    """What the gate says about one file, one optimization, or the change as a whole."""

    kind: Literal["file", "optimization", "change"]
    name: str
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    verification: Verification | None = None
    refused: VerificationFailed | None = None

    @property
    def status(self) -> int:
        """That of the worst finding."""
        return worst([finding.status for finding in self.findings])

    def json_value(self) -> dict[str, Any]:
        """The JSON object of this value."""
        return {
            "kind": self.kind,
            "name": self.name,
            "status": self.status,
            "findings": [finding.json_value() for finding in self.findings],
            "notes": list(self.notes),
            "verification": self.verification.json_value() if self.verification else None,
            "refused": self.refused.diagnostics() if self.refused else None,
        }


@dataclass(frozen=True)
class GateResult:
    """What the gate says about everything it was shown."""

    decisions: tuple[Decision, ...]
    facts: tuple[tuple[str, str], ...] = ()
    """What was compared with what, for the head of the page."""

    @property
    def status(self) -> int:
        """The exit status."""
        return worst([decision.status for decision in self.decisions])

    def json_value(self) -> dict[str, Any]:
        """What `fasttrack gate --json` prints."""
        return {
            "status": self.status,
            "facts": dict(self.facts),
            "decisions": [decision.json_value() for decision in self.decisions],
        }


def worst(statuses: Sequence[int]) -> int:
    """The status that decides; 0 for none."""
    return max(statuses, key=_SEVERITY.index, default=EXIT_PASS)
