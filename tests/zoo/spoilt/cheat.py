"""A spoilt run, and two ways to make one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    Record,
    State,
)


@dataclass(frozen=True)
class Cheat:
    """A spoilt run and the verdict that must find it."""

    name: str
    records: Sequence[Record]
    cell: str
    state: State
    reason: str
    says: str = ""
    claim: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)


def spoilt(kind: type, where: Any = None, **changes: Any) -> list[Record]:
    """The honest run with fields of some records replaced."""
    return zoo.changed(zoo.honest_run(), kind, where, **changes)


def without(condition: Any) -> list[Record]:
    """The honest run without some records."""
    return [record for record in zoo.honest_run() if not condition(record)]
