"""The stage isolation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fasttrack.schema import (
    Check,
    IsolationRecord,
    Record,
)
from fasttrack.schema.record import IsolationFinding


def isolation(**broken: Any) -> list[Record]:
    """All subjects; `broken` replaces what a check observed, by its name, and `found` adds
    (subject, finding) pairs."""
    found: Sequence[tuple[str, IsolationFinding]] = broken.pop("found", ())
    source = ("scope", "protected", "imports", "patches", "environment", "torch")
    bounds: dict[str, dict[str, Any]] = {name: {"files": 3} for name in source} | {
        "neighbour": {"tokens_equal": 4, "ops": "a1"},
        "code": {"code": "c0"},
        "switched-on": {"tokens_equal": 4, "code": "c0"},
        "model": {"code": "c0"},
    }
    return [
        IsolationRecord(
            subject=subject,
            checks=[
                Check(name=n, relation="equal", observed=broken.get(n, bound), bound=bound)
                for n, bound in named.items()
            ],
            findings=[finding for name, finding in found if name == subject],
        )
        for subject, named in bounds.items()
    ]


def finding(code: str, where: str = "zoo/ops.py:7", exempt: str = "") -> IsolationFinding:
    """Something the isolation stage found."""
    return IsolationFinding(code=code, where=where, what="planted", why="it is", exempt=exempt)
