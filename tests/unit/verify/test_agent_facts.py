"""Protects result files from replays of agent traffic that cannot have happened as recorded."""

from __future__ import annotations

from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.schema import AgentRecord, Record
from fasttrack.verify import consistency
from fasttrack.verify.facts import Contradiction, Facts

CHECKS = (consistency._references, consistency._cells, consistency._blocks)


def contradictions(records: list[Record], **run: Any) -> list[Contradiction]:
    """The first thing that each check that looks at replays says."""
    facts = Facts(zoo.claim(agent={}), zoo.run_info(**run), {}, records)
    told = [next(check(facts), None) for check in CHECKS]
    return [found for found in told if found is not None]


def test_an_honest_run_contradicts_nothing() -> None:
    assert contradictions(zoo.agent()) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session": "perf-agent-b99-0-base"}, "VER-085"),
        ({"arm": "candidate"}, "VER-085"),
        ({"cell": "agent/concurrency=64"}, "VER-086"),
        ({"position": 1}, "VER-087"),
        ({"position": 7}, "VER-087"),
    ],
)
def test_a_replay_that_fits_nowhere_is_found(change: dict[str, Any], code: str) -> None:
    first = next(r for r in zoo.agent() if isinstance(r, AgentRecord) and r.arm == "base")
    records = zoo.changed(zoo.agent(), AgentRecord, lambda r: r.session == first.session, **change)
    assert code in {found.code for found in contradictions(records)}


def test_replays_that_nobody_planned_are_found() -> None:
    told = contradictions(zoo.agent(), tier="smoke")
    assert {found.code for found in told} == {"VER-086"}
    assert contradictions(zoo.agent(), tier="smoke", agent=True) == []
