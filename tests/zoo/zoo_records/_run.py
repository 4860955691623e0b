"""Whose run it is: claim, target, policy, and how the rules decide it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fasttrack import rules
from fasttrack.rules.base import Case
from fasttrack.schema import (
    STAGES,
    Arm,
    Claim,
    Outcome,
    PlantResult,
    Policy,
    Record,
    RunInfo,
    SelfTest,
    Tier,
    Verdict,
)
from fasttrack.schema.record import Stage

ARMS: tuple[Arm, Arm] = ("base", "candidate")
SWITCH = {"base": "auto", "candidate": "latency_specialized"}
WINDOW = 12
"""Steady steps of a sample, after three of warm-up."""
CONTROLS = ("zeros", "first_slice_off", "tail_dropped", "lower_precision")
REPEATS = Policy().numerics.min_repeats
FEATURES = Policy().required_features


def claim(
    *,
    batch: Sequence[int] = (1, 8),
    speed: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    **changes: Any,
) -> Claim:
    """A claim on one target of the role `evidence`; `changes` replace top-level keys."""
    return Claim.model_validate(
        {
            "schema": "fasttrack.claim/v1",
            "name": "zoo",
            "title": "Zoo",
            "summary": "An invented claim.",
            "scope": {"models": ["ZooForCausalLM"], "paths": ["zoo/**"], "ops": ["mix"]},
            "switch": {"key": "additional_config.decode_backend", **SWITCH},
            "plugin": {"distribution": "zoo", "module": "zoo", "entry": "zoo.ops:mix"},
            "speed": speed or {"sentence": "faster_everywhere"},
            "targets": {
                "lab": {
                    "engine": "fake",
                    "role": "evidence",
                    "grid": {"batch": batch, "context_tokens": [64]},
                    "trace": {"shows": ["fast::*"], "hides": ["stock::*"]},
                    "agent": agent,
                }
            },
        }
        | changes
    )


def run_info(stages: Sequence[Stage] = STAGES, **changes: Any) -> RunInfo:
    """Run information of tier `standard`."""
    return RunInfo(
        **{
            "run_id": "zoo-lab-1",
            "target": "lab",
            "tier": Tier.STANDARD,
            "seed": 0,
            "stages": tuple(stages),
            "command": ("fasttrack", "validate", "zoo"),
            "claim_sha256": "0" * 64,
            "policy_sha256": "0" * 64,
            "plan_sha256": "0" * 64,
            "harness_version": "0",
            "created_utc": "2026-01-01T00:00:00+00:00",
            "self_test": self_test(),
        }
        | changes
    )


def self_test(**states: Any) -> SelfTest:
    """A cheat caught and honest work accepted, unless `states` says otherwise."""
    plants = {"cheats": "right", "honest": "right"} | states
    return SelfTest(
        harness_sha256="0" * 64,
        catalogue_sha256="0" * 64,
        plants=[
            PlantResult(group=group, name=f"a_{group}", row=None, code="", state=state)
            for group, state in plants.items()
        ],
    )


def case(
    records: Iterable[Record], the_claim: Claim | None = None, policy: Policy | None = None,
    **run: Any,
) -> Case:  # fmt: skip
    """What a rule is given."""
    return Case(the_claim or claim(), run_info(**run), policy or Policy(), tuple(records))


def decide(
    records: Iterable[Record], the_claim: Claim | None = None, policy: Policy | None = None,
    **run: Any,
) -> tuple[tuple[Verdict, ...], Outcome]:  # fmt: skip
    """Verdicts and outcome of a run."""
    return rules.decide(the_claim or claim(), run_info(**run), list(records), policy or Policy())


def found(verdicts: Iterable[Verdict], cell: str) -> Verdict:
    """The one verdict of that cell."""
    (verdict,) = [verdict for verdict in verdicts if verdict.cell == cell]
    return verdict


def changed(records: Iterable[Record], kind: type, where: Any = None, **changes: Any) -> list[Any]:
    """Records with fields replaced in those of a kind for which `where(record)` holds."""
    return [
        r.model_copy(update=changes) if isinstance(r, kind) and (where is None or where(r)) else r
        for r in records
    ]
