"""Protects honest work from the rules: runs that must pass although they are not spotless.

Each is a whole run of the zoo with one thing that a careless rule would hold against it. What the
rules must refuse is next door, in `cheats`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import zoo_records as zoo

from fasttrack.schema import (
    CodeRecord,
    ItemRecord,
    KernelRecord,
    Record,
    SampleRecord,
    State,
    StateRecord,
    StateStep,
    TwinRecord,
)


@dataclass(frozen=True)
class Honest:
    """A run, and the verdict of the cell it is about."""

    name: str
    records: Sequence[Record]
    cell: str
    state: State
    claim: dict[str, Any] = field(default_factory=dict)


def tied(records: list[ItemRecord], moved: float) -> list[ItemRecord]:
    """Item 3 parts at its fifth token, where base was undecided by 1e-4 nats."""
    made = []
    for r in records:
        if r.item == "recall-3":
            gaps = [2.0, 2.0, 2.0, 2.0, 1e-4, 2.0, 2.0, 2.0]
            if r.repeat == "control":
                gaps = [gap + moved for gap in gaps]
            ids = list(r.token_ids)
            if r.arm == "candidate" and r.repeat != "replay":
                ids[4] = 99
            r = r.model_copy(update={"gaps": tuple(gaps), "token_ids": tuple(ids)})
        made.append(r)
    return made


def lost_session() -> list[Record]:
    """One session of eight shed a request: its pair is excluded, and a spare block makes up."""
    return zoo.changed(
        zoo.perf(1.5, blocks=3), SampleRecord, lambda r: r.session == "perf-b1-3-candidate"
        or r.session == "perf-b1-3-base", completed_requests=0,
    )  # fmt: skip


def late_step() -> list[Record]:
    """The engine ran a step after the harness had what it wanted: the log is one step longer."""
    extra = [zoo.path_step("candidate", d, p, i) for i, (d, p) in enumerate([*zoo.ROUND, (1, 0)])]
    return [
        *(r for r in zoo.features() if r != zoo.path("features", "candidate")),
        zoo.path("features", "candidate", steps=extra),
    ]


REFUSAL: dict[str, Any] = {"features": {"refused": {"prefix_cache": "states are not paged"}}}
SLOWER: dict[str, Any] = {"speed": {"sentence": "slower_nowhere", "slower_margin_percent": 3.0}}
NAMED: dict[str, Any] = {
    "speed": {"sentence": "faster_in_named_cells", "faster_batches": [1]},
}
CASES = (
    Honest("plain", zoo.honest_run(), "sentence", State.PASS),
    Honest(
        "declares_what_policy_lets_be",
        zoo.honest_run(
            isolation=zoo.isolation(found=[("torch", zoo.finding("ISO-TORCH", exempt="A script."))])
        ),
        "torch",
        State.PASS,
    ),
    Honest(
        "a_line_in_the_changelog_besides",
        zoo.honest_run(
            isolation=zoo.isolation(found=[("scope", zoo.finding("ISO-SCOPE", "CHANGELOG.md"))])
        ),
        "scope",
        State.PASS,
    ),
    Honest(
        "better_than_stock",
        zoo.honest_run(kernels=zoo.kernels([zoo.errors(0.1), zoo.errors(0.11)])),
        "mix/batch=1",
        State.PASS,
    ),
    Honest(
        "exact_where_stock_is_exact",
        zoo.honest_run(
            kernels=zoo.changed(
                zoo.kernels([zoo.errors(0.0)]),
                KernelRecord,
                stock=zoo.errors(0.0),
                rounding_rms=0.0,
            )
        ),
        "mix/batch=1",
        State.PASS,
    ),
    Honest(
        "parts_at_a_tie",
        zoo.honest_run(evals=zoo.evals(tied(zoo.answers(), 2e-4))),
        "recall/divergence",
        State.PASS,
    ),
    Honest(
        "as_noisy_as_stock",
        zoo.honest_run(
            evals=zoo.evals(
                [
                    zoo.item(int(r.item[7:]), "candidate", score=r.score, shift=3e-3)
                    if (r.arm, r.repeat) == ("candidate", "main")
                    else r
                    for r in zoo.answers(noise=2e-3)
                ]
            )
        ),
        "recall/divergence",
        State.PASS,
    ),
    Honest(
        "step_after_the_last",
        zoo.honest_run(features=late_step()),
        "features/candidate",
        State.PASS,
    ),
    Honest(
        "refused_as_declared",
        zoo.honest_run(
            features=[
                *zoo.features([n for n in zoo.FEATURES if n != "prefix_cache"]),
                zoo.feature("prefix_cache", "base"),
                zoo.feature("prefix_cache", "candidate", "refused", message="not paged"),
            ]
        ),
        "prefix_cache",
        State.REFUSED_AS_DECLARED,
        REFUSAL,
    ),
    Honest(
        "offered_by_neither_arm_and_not_required",
        zoo.honest_run(
            features=[
                *zoo.features(),
                zoo.feature("speculation", "base", "refused", message="no drafter"),
                zoo.feature("speculation", "candidate", "refused", message="no drafter"),
            ]
        ),
        "speculation",
        State.UNSUPPORTED,
    ),
    Honest("no_compiled_kernels", zoo.honest_run(), "compiled", State.UNSUPPORTED),
    Honest(
        "weight_before_the_wait",
        zoo.honest_run(compiled=zoo.compiled(zoo.compiled_kernel())),
        "compiled/fuse/sm_90a",
        State.PASS,
    ),
    Honest(
        "mailbox_of_its_own_before_the_wait",
        zoo.honest_run(
            compiled=zoo.compiled(
                zoo.compiled_kernel(own=(2,), early=(zoo.early_access("atomic", (2,)),))
            )
        ),
        "compiled/fuse/sm_90a",
        State.PASS,
    ),
    Honest(
        "launched_in_stream_order",
        zoo.honest_run(
            compiled=zoo.compiled(
                zoo.compiled_kernel(
                    dependent=False, waits=(), early=(zoo.early_access(parameters=(0,)),)
                )
            )
        ),
        "compiled/fuse/sm_90a",
        State.PASS,
    ),
    Honest(
        "eager_code_maps_nothing",
        zoo.honest_run(path=zoo.changed(zoo.proofs(), CodeRecord, files={})),
        "path/code",
        State.INSENSITIVE,
    ),
    Honest("caches_of_two_ranks", zoo.honest_run(path=zoo.of_ranks(2)), "path/state", State.PASS),
    Honest(
        "names_of_two_ranks",
        zoo.honest_run(path=zoo.of_ranks(2)),
        "path/evals/trace",
        State.PASS,
    ),
    Honest(
        "null_block_that_stock_changes_too",
        zoo.honest_run(
            path=zoo.changed(
                zoo.proofs(),
                StateRecord,
                steps=[
                    StateStep(slots="1-2", rows="9", foreign="", foreign_rows="", null=True)
                    for _ in range(3)
                ],
            )
        ),
        "path/state",
        State.PASS,
    ),
    Honest(
        "alternation_as_noisy_as_stock",
        zoo.honest_run(
            path=zoo.changed(
                zoo.proofs(),
                TwinRecord,
                lambda r: r.change == "alternation",
                changed=[zoo.answer((5, 6, 7), 0.02)],
            )
        ),
        "path/alternation",
        State.PASS,
    ),
    Honest(
        "alternation_of_a_model_that_parts_from_itself",
        zoo.honest_run(path=zoo.parted((5, 6, 9))),
        "path/alternation",
        State.PASS,
    ),
    Honest(
        "alternation_forced_along_where_stock_would_part_too",
        zoo.honest_run(path=zoo.parted((5, 6, 7), ranks=(1, 1, 2))),
        "path/alternation",
        State.PASS,
    ),
    Honest(
        "verifies_drafts_with_stock",
        zoo.honest_run(
            features=[
                *zoo.features(),
                zoo.path(
                    "features",
                    "candidate",
                    [(2, 0), (6, 0)],
                    steps=[
                        zoo.path_step("candidate", 2, 0),
                        zoo.path_step("candidate", 0, 6, 1, reason="draft verification"),
                    ],
                    drafted=(1,),
                ),
            ]
        ),
        "features/candidate",
        State.PASS,
    ),
    Honest("one_session_lost", zoo.honest_run(perf=lost_session()), "sentence", State.PASS),
    Honest(
        "machine_drifts", zoo.honest_run(perf=zoo.perf(1.5, drift=0.01)), "sentence", State.PASS
    ),
    Honest(
        "equal_is_not_slower", zoo.honest_run(perf=zoo.perf(1.0)), "sentence", State.PASS, SLOWER
    ),
    Honest(
        "within_the_margin", zoo.honest_run(perf=zoo.perf(0.985)), "sentence", State.PASS, SLOWER
    ),
    Honest("faster_where_named", zoo.honest_run(perf=zoo.perf(1.3)), "sentence", State.PASS, NAMED),
    Honest("agents", zoo.agent_run(), "agent/concurrency=1", State.PASS, {"agent": {}}),
    Honest(
        "equal_for_agents", zoo.agent_run(speedup=1.0), "agent/concurrency=1/interactivity",
        State.EQUIVALENT, {"agent": {}},
    ),
    Honest(
        "agents_described", zoo.agent_run(blocks=1), "agent/concurrency=1/interactivity",
        State.INCONCLUSIVE, {"agent": {}},
    ),
)  # fmt: skip


@pytest.mark.parametrize("honest", CASES, ids=lambda honest: honest.name)
def test_an_honest_run_passes(honest: Honest) -> None:
    verdicts, outcome = zoo.decide(honest.records, zoo.claim(**honest.claim))
    verdict = zoo.found(verdicts, honest.cell)
    assert verdict.state is honest.state, verdict.detail
    assert outcome.state is State.PASS, [v for v in verdicts if v.state is not State.PASS]
    assert outcome.admissible


def test_a_base_that_scores_nothing_informs_but_does_not_decide_on_a_development_target() -> None:
    answers = zoo.changed(zoo.answers(), ItemRecord, score=0.0)
    target = zoo.claim().targets["lab"].model_copy(update={"role": "development"})
    claim = zoo.claim().model_copy(update={"targets": {"lab": target}})
    verdicts, outcome = zoo.decide(zoo.honest_run(evals=zoo.evals(answers)), claim)
    assert zoo.found(verdicts, "recall/accuracy").state is State.INSENSITIVE
    assert outcome.state is State.PASS
    assert not outcome.admissible


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(dataclasses.is_dataclass(case) for case in CASES)
