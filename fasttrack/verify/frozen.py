"""Steps 3 and 7: the statement is about these files, and nothing was changed after freezing.

Claim, policy and plan were digested before anything was measured; `claim/run.json` carries those
digests, the statement repeats them. Read by `steps`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from fasttrack.bundle import layout, statement
from fasttrack.bundle.reader import Bundle
from fasttrack.errors import VerificationFailed


def check_statement(bundle: Bundle) -> str:
    """The manifest's digest, after the statement was found to be about it.

    Raises `VerificationFailed` VER-019..024.
    """
    if statement.subject_sha256(bundle.statement) != bundle.manifest_sha256:
        raise VerificationFailed(
            "VER-024", "its subject is not this manifest", cell=layout.STATEMENT
        )
    return bundle.manifest_sha256


def check_frozen(bundle: Bundle) -> None:
    """Claim, policy, plan, run and statement agree.

    Raises `VerificationFailed` VER-050..054 and VER-025.
    """
    run = bundle.run
    if bundle.source_claim.digest() != bundle.claim.digest():
        raise VerificationFailed(
            "VER-050", "it says something else than claim.json", cell=layout.CLAIM_TOML
        )
    for code, name, frozen in (
        ("VER-051", layout.CLAIM, run.claim_sha256),
        ("VER-052", layout.POLICY, run.policy_sha256),
        ("VER-053", layout.PLAN, run.plan_sha256),
    ):
        # Of the bytes, which are canonical: a field that later versions add must change nothing.
        found = hashlib.sha256(bundle.read(name)).hexdigest()
        if found != frozen:
            raise VerificationFailed(
                code, f"its digest {found[:12]} is not the frozen {frozen[:12]}", cell=name
            )
    _check_plan(bundle)
    _check_predicate(bundle)


def _check_plan(bundle: Bundle) -> None:
    run, claim, plan = bundle.run, bundle.claim, bundle.plan
    if run.target not in claim.targets:
        raise VerificationFailed(
            "VER-054", f"the claim has no target {run.target!r}", cell=layout.RUN
        )
    expected: dict[str, Any] = {
        "claim_sha256": run.claim_sha256,
        "target": run.target,
        "tier": run.tier.value,
        "seed": run.seed,
        "cells": [cell.id for cell in claim.cells(run.target)],
    }
    for key, value in expected.items():
        if plan.get(key) != value:
            raise VerificationFailed(
                "VER-054", f"its {key} is not that of claim and run", cell=layout.PLAN
            )
    units = plan.get("units")
    if not isinstance(units, list) or not all(isinstance(unit, str) for unit in units):
        raise VerificationFailed("VER-054", "it lists no units of work", cell=layout.PLAN)
    try:
        zone = datetime.fromisoformat(run.created_utc).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise VerificationFailed(
            "VER-018", "created_utc is not a time with a zone", cell=layout.RUN
        )


def _check_predicate(bundle: Bundle) -> None:
    expected = statement.predicate(bundle.run, bundle.outcome)
    told = dict(bundle.statement.predicate)
    if told != expected:
        keys = sorted(key for key in {*told, *expected} if told.get(key) != expected.get(key))
        raise VerificationFailed(
            "VER-025", f"it contradicts the files in {', '.join(keys)[:200]}", cell=layout.STATEMENT
        )
