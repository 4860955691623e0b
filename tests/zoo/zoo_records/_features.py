"""The stage features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fasttrack.schema import (
    Arm,
    Check,
    FeatureRecord,
    Record,
)
from zoo_records._path import path, session
from zoo_records._run import FEATURES


def feature(
    name: str,
    arm: Arm,
    status: Any = "observed",
    *,
    works: bool = True,
    message: str = "",
    checks: bool = True,
) -> FeatureRecord:
    """One feature in one arm."""
    check = Check(name="works", relation="equal", observed=works, bound=True)
    held = (check,) if checks and status == "observed" else ()
    return FeatureRecord(feature=name, arm=arm, status=status, checks=held, message=message)


def features(names: Sequence[str] = FEATURES) -> list[Record]:
    """All features kept in both arms, with their path evidence."""
    made: list[Record] = []
    for arm in ("base", "candidate"):
        made += [feature(name, arm) for name in names]
        made += [path("features", arm, cell=f"features/{name}") for name in names]
        made.append(session("features", f"features-{arm}", arm))
    return made
