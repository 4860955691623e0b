"""What the consistency checks look at, and what they answer. Read by `consistency` and `counts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from fasttrack.rules.validity import SIMULATED_ENGINE
from fasttrack.schema import AgentRecord, Claim, Record, RunInfo, SampleRecord, SessionRecord

R = TypeVar("R")


@dataclass(frozen=True)
class Contradiction:
    """Why a run cannot have happened as recorded, and the record that shows it."""

    code: str
    cause: str
    at: Record


class Facts:
    """Everything the checks look at."""

    def __init__(
        self, claim: Claim, run: RunInfo, amounts: Mapping[str, int], records: Sequence[Record]
    ) -> None:
        self.claim = claim
        self.run = run
        self.amounts = amounts
        """The plan's."""
        self._records = records
        self.simulated = claim.targets[run.target].engine == SIMULATED_ENGINE

    def of(self, kind: type[R]) -> list[R]:
        """Records of one kind, in file order."""
        return [record for record in self._records if isinstance(record, kind)]

    @cached_property
    def sessions(self) -> dict[str, SessionRecord]:
        """Sessions by name; of two with one name, the first."""
        named: dict[str, SessionRecord] = {}
        for record in self.of(SessionRecord):
            named.setdefault(record.session, record)
        return named

    @cached_property
    def replays(self) -> list[AgentRecord]:
        """All replays of agent traffic."""
        return self.of(AgentRecord)

    @cached_property
    def samples(self) -> list[SampleRecord]:
        """All perf samples."""
        return self.of(SampleRecord)
