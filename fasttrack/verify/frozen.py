"""Steps 3 and 7: the statement is about these files, and nothing was changed after freezing.

Claim, policy and plan were digested before anything was measured; `claim/run.json` carries those
digests, the statement repeats them. Read by `steps`.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from fasttrack import plan as planning
from fasttrack.bundle import layout, statement
from fasttrack.bundle.provenance import harness_digest
from fasttrack.bundle.reader import Bundle
from fasttrack.errors import UsageError, VerificationFailed
from fasttrack.selftest import catalogue

MAX_CELLS = 20_000
MAX_OPS = 1_000


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

    Raises `VerificationFailed` VER-050..055 and VER-025.
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
    _check_self_test(bundle)
    _check_predicate(bundle)


def _check_plan(bundle: Bundle) -> None:
    run, claim, plan = bundle.run, bundle.claim, bundle.plan
    if run.target not in claim.targets:
        raise VerificationFailed(
            "VER-054", f"the claim has no target {run.target!r}", cell=layout.RUN
        )
    grid = claim.targets[run.target].grid
    cells = len(grid.batch) * len(grid.context_tokens) * len(grid.workload)
    cells *= max(1, len(grid.tensor_parallel_size))
    cells *= len(grid.decode_context_parallel_size) * len(grid.draft_tokens)
    if cells > MAX_CELLS or len(claim.scope.ops) > MAX_OPS:
        raise VerificationFailed(
            "VER-002",
            f"{cells} cells and {len(claim.scope.ops)} ops are too many",
            cell=layout.CLAIM,
        )
    try:
        expected = planning.make(claim, run.target, run.tier, run.seed, run.agent).json_value()
    except UsageError as error:
        raise VerificationFailed("VER-054", error.cause, cell=layout.PLAN) from error
    expected["claim_sha256"] = run.claim_sha256
    units = plan.get("units")
    if not isinstance(units, list) or not all(isinstance(unit, str) for unit in units):
        raise VerificationFailed("VER-054", "it lists no units of work", cell=layout.PLAN)
    # A unit's name ends in a digest of its inputs, which a later version may form otherwise.
    found = plan | {"units": [_work(unit) for unit in units]}
    expected["units"] = [_work(unit) for unit in expected["units"]]
    for key in sorted({*found, *expected}):
        if found.get(key) != expected.get(key):
            raise VerificationFailed(
                "VER-054", f"its {key} is not that of claim and run", cell=layout.PLAN
            )
    try:
        zone = datetime.fromisoformat(run.created_utc).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise VerificationFailed(
            "VER-018", "created_utc is not a time with a zone", cell=layout.RUN
        )


def _check_self_test(bundle: Bundle) -> None:
    """The self-test is of the run's own harness; where that is ours, of our zoo, each plant once.

    That it was not made up is what a reproducer's own run shows.
    """
    told = bundle.run.self_test
    if told is None:
        return
    problem = ""
    if told.harness_sha256 != bundle.provenance.source.get("harness_sha256"):
        problem = "it was made by another harness than the one that ended the run"
    elif told.harness_sha256 == harness_digest():
        zoo = catalogue.default_folder()
        plants = [(p.group, p.name, p.row, p.code) for p in told.plants]
        if zoo is not None and told.catalogue_sha256 != catalogue.digest(zoo):
            problem = "its zoo is not the one of this harness"
        elif zoo is not None and plants != catalogue.keys(zoo):
            problem = "it does not list the plants of its zoo"
    if problem:
        raise VerificationFailed("VER-055", problem, cell=layout.RUN)


def _work(unit: str) -> str:
    return unit.rpartition("-")[0]


def _check_predicate(bundle: Bundle) -> None:
    expected = statement.predicate(bundle.run, bundle.outcome)
    told = dict(bundle.statement.predicate)
    if told != expected:
        keys = sorted(key for key in {*told, *expected} if told.get(key) != expected.get(key))
        raise VerificationFailed(
            "VER-025", f"it contradicts the files in {', '.join(keys)[:200]}", cell=layout.STATEMENT
        )
