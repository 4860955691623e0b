"""Protects the claim of honesty: equal arms, through plan, sweep and rule, are not told apart.

The fake engine runs in this process with the noise of a real, shared machine: slow boots, spikes.
`benchmarks/equal_arms.py` does the same through the command's own pipeline.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

from local_engine import setting

from fasttrack import plan, rules
from fasttrack.perf import sweep
from fasttrack.schema import Policy, Record, RunInfo, State, Target, Tier

REPETITIONS = 30


def states(folder: Path, seed: int, tier: Tier, **fake: object) -> tuple[list[State], int]:
    """States of the cells of one sweep, and the number of sessions it booted."""
    chosen = setting(folder, seed=seed)
    target = chosen.target.json_value()
    target["grid"] |= {"batch": [1, 8, 64], "context_tokens": [32]}
    target["engine_args"] = {"fake": {"seed": seed, **fake}}
    targets = {"lab": Target.model_validate(target)}
    claim = chosen.claim.model_copy(update={"targets": targets})
    info = RunInfo(
        run_id="aa", target="lab", tier=tier, seed=seed, stages=("perf",), command=(),
        claim_sha256="", policy_sha256="", plan_sha256="", harness_version="0",
        created_utc="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    records: list[Record] = []
    chosen = dataclasses.replace(
        chosen,
        claim=claim,
        settled=lambda block, pairs: rules.settled(claim, info, records, Policy(), block, pairs),
    )
    for unit in plan.make(claim, "lab", tier, seed).stage("perf"):
        records += sweep.run(chosen, unit.spec)
    verdicts, _ = rules.decide(claim, info, records, Policy())
    told = [v.state for v in verdicts if v.rule == "speed" and v.cell != "sentence"]
    return told, len(chosen.engine.launches)  # type: ignore[attr-defined]


def test_equal_arms_are_not_told_apart(tmp_path: Path) -> None:
    found: Counter[State] = Counter()
    for seed in range(REPETITIONS):
        found.update(states(tmp_path, seed, Tier.SMOKE, noise="recorded")[0])
    assert found.total() == 3 * REPETITIONS
    for state in (State.FASTER, State.SLOWER):
        assert found[state] <= Policy().speed.level * found.total(), found


def test_a_gain_is_found_in_the_noise_of_a_real_machine(tmp_path: Path) -> None:
    found: Counter[State] = Counter()
    for seed in range(2):
        found.update(states(tmp_path, seed, Tier.FULL, noise="recorded", speedup=3.0)[0])
    assert found[State.FASTER] >= 0.9 * found.total(), found


def test_looking_ends_where_the_answer_is_clear(tmp_path: Path) -> None:
    quiet, boots = states(tmp_path, 0, Tier.FULL, noise_percent=0.1, speedup=1.5)
    assert set(quiet) == {State.FASTER}
    assert boots == 8
