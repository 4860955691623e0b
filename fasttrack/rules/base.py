"""The rule protocol and the view of records that rules share.

A rule is a pure function of claim, records and policy. It answers for every cell it knows of; a
required cell without records is MISSING. Nothing here reads a file or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from fasttrack.schema import Claim, Policy, Record, RunInfo, State, Target, Verdict

R = TypeVar("R")


@dataclass(frozen=True)
class Case:
    """Everything a rule may look at."""

    claim: Claim
    run: RunInfo
    policy: Policy
    all_records: tuple[Record, ...]

    @property
    def target(self) -> Target:
        """The target that was run."""
        return self.claim.targets[self.run.target]

    def records(self, kind: type[R]) -> tuple[R, ...]:
        """Records of one kind, in file order."""
        return tuple(record for record in self.all_records if isinstance(record, kind))

    def wants(self, cell: str) -> bool:
        """Whether the run was to measure this cell: all of them, unless its author chose some."""
        return self.run.cell is None or fnmatchcase(cell, self.run.cell)

    def reproduce(self, stage: str, cell: str = "") -> str:
        """The command that measures one stage, or one of its cells, again."""
        chosen = f" --cell '{cell}'" if cell else ""
        return (
            f"fasttrack validate FOLDER --target {self.run.target} --tier {self.run.tier.value} "
            f"--seed {self.run.seed} --fresh --only {stage}{chosen}"
        )


Judge = Callable[[Case], Iterator[Verdict]]


@dataclass(frozen=True)
class Rule:
    """A named judge of one stage's records."""

    name: str
    stage: str
    judge: Judge


Finding = tuple[State, str, str]
"""State, reason and detail."""


def path_verdict(
    case: Case, stage: str, cell: str, found: Finding, n: int = 0, deciding: bool = True
) -> Verdict:
    """A finding of the rule `path`, which step logs and the harness's own proofs share."""
    state, reason, detail = found
    return Verdict(
        rule="path",
        cell=cell,
        state=state,
        reason=reason,
        detail=detail,
        deciding=deciding,
        n=n,
        next="" if state is State.PASS else case.reproduce(stage),
    )


def missing(rule: str, cell: str, case: Case, stage: str, detail: str = "") -> Verdict:
    """The default answer."""
    return Verdict(
        rule=rule,
        cell=cell,
        state=State.MISSING,
        reason="NO-RECORDS",
        detail=detail or f"{cell} left no record",
        next=case.reproduce(stage),
    )
