"""Features lost, refused or broken."""

from __future__ import annotations

from typing import Any

import zoo_records as zoo

from fasttrack.schema import (
    State,
)
from spoilt.cheat import Cheat


def featured(name: str, state: State, reason: str, base: Any, mine: Any, says: str = "") -> Cheat:
    """The feature `sampling`, as `base` and `mine` show it."""
    others = zoo.features([n for n in zoo.FEATURES if n != "sampling"])
    records = [*others, *(r for r in (base, mine) if r is not None)]
    return Cheat(name, zoo.honest_run(features=records), "sampling", state, reason, says)


KEPT = zoo.feature("sampling", "base")
FEATURES = (
    featured("lost", State.FAIL, "FEAT-LOST", KEPT,
             zoo.feature("sampling", "candidate", works=False), "works: False"),
    featured("error_in_candidate", State.FAIL, "FEAT-LOST", KEPT,
             zoo.feature("sampling", "candidate", "error", message="boom"), "error: boom"),
    featured("nothing_was_checked", State.FAIL, "FEAT-LOST", KEPT,
             zoo.feature("sampling", "candidate", checks=False), "nothing was checked"),
    featured("broken_in_base_too", State.INVALID, "FEAT-BASE",
             zoo.feature("sampling", "base", works=False),
             zoo.feature("sampling", "candidate", works=False), "base: works: False"),
    featured("undeclared_refusal", State.FAIL, "FEAT-UNDECLARED", KEPT,
             zoo.feature("sampling", "candidate", "refused", message="no top-p"), "no top-p"),
    featured("required_and_offered_by_neither_arm", State.INVALID, "FEAT-BASE",
             zoo.feature("sampling", "base", "refused", message="off"),
             zoo.feature("sampling", "candidate", "refused", message="off"), "base: refused"),
    featured("seen_in_one_arm_only", State.MISSING, "NO-RECORDS", KEPT, None),
)  # fmt: skip
