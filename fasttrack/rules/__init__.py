"""Registry of rules, and `decide`: records to verdicts to one outcome.

The verifier runs exactly this on a bundle's raw records. Zero rules, zero records or a stage that
was not run never make a PASS.
"""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.rules import (
    agent,
    features,
    hoist,
    isolation,
    numerics,
    path,
    proof,
    quality,
    routing,
    sanitizer,
    speed,
)
from fasttrack.rules.base import Case, Rule, missing
from fasttrack.schema import (
    Claim,
    Outcome,
    Policy,
    Record,
    RunInfo,
    SampleRecord,
    State,
    Tier,
    Verdict,
)
from fasttrack.schema.record import STAGES
from fasttrack.schema.verdict import BAD, GOOD

RULES: tuple[Rule, ...] = (
    *isolation.RULES,
    *numerics.RULES,
    *hoist.RULES,
    *sanitizer.RULES,
    *path.RULES,
    *proof.RULES,
    *features.RULES,
    *quality.RULES,
    *routing.RULES,
    *speed.RULES,
    *agent.RULES,
)
_TIER_ORDER = tuple(Tier)


def decide(
    claim: Claim, run: RunInfo, records: Sequence[Record], policy: Policy
) -> tuple[tuple[Verdict, ...], Outcome]:
    """Judge a run: verdicts in a fixed order, and the outcome they add up to."""
    case = Case(claim=claim, run=run, policy=policy, all_records=tuple(records))
    verdicts: list[Verdict] = []
    for stage in STAGES:
        if stage not in run.stages:
            if stage in policy.required_stages:
                verdicts.append(_left_out(stage))
            continue
        before = len(verdicts)
        for rule in RULES:
            if rule.stage == stage:
                verdicts.extend(rule.judge(case))
        if len(verdicts) == before:
            verdicts.append(missing("stages", stage, case, stage))
    return tuple(verdicts), outcome(case, verdicts)


def settled(
    claim: Claim, run: RunInfo, records: Sequence[Record], policy: Policy, block: int, pairs: int
) -> frozenset[str]:
    """Perf cells about which blocks from this one on could say no more; see `speed.settled`."""
    before = tuple(r for r in records if not isinstance(r, SampleRecord) or r.block < block)
    return speed.settled(Case(claim=claim, run=run, policy=policy, all_records=before), pairs)


def outcome(case: Case, verdicts: Sequence[Verdict]) -> Outcome:
    """FAIL if any deciding verdict is bad, PASS if all are good and there are some."""
    deciding = [verdict.state for verdict in verdicts if verdict.deciding]
    if any(state in BAD or state is State.NOT_EXERCISED for state in deciding):
        state = State.FAIL
    elif deciding and all(state in GOOD for state in deciding):
        state = State.PASS
    else:
        state = State.INCONCLUSIVE
    because = tuple(_not_admissible(case))
    return Outcome(
        state=state,
        admissible=not because,
        not_admissible_because=because,
        untested=tuple(_untested(case, verdicts)),
    )


def _left_out(stage: str) -> Verdict:
    return Verdict(
        rule="stages",
        cell=stage,
        state=State.MISSING,
        reason="RUN-PARTIAL",
        detail=f"stage {stage} was left out on request",
        deciding=False,
        next="fasttrack validate FOLDER",
    )


def _not_admissible(case: Case) -> list[str]:
    reasons = []
    if case.target.role not in case.policy.admissible_roles:
        reasons.append(f"target {case.run.target} has the role {case.target.role}")
    if _TIER_ORDER.index(case.run.tier) < _TIER_ORDER.index(case.policy.minimum_tier):
        reasons.append(f"tier {case.run.tier.value} is below {case.policy.minimum_tier.value}")
    left_out = [stage for stage in case.policy.required_stages if stage not in case.run.stages]
    if left_out:
        reasons.append(f"stages left out: {', '.join(left_out)}")
    if case.run.cell is not None:
        reasons.append(f"only cells like {case.run.cell} were measured")
    tested = case.run.self_test
    if tested is None or not all(tested.count(group)[1] for group in ("cheats", "honest")):
        reasons.append("the harness was not tested on planted cheats and honest work")
    elif not tested.flawless:
        reasons.append(f"self-test: {tested.sentence}; wrong: {', '.join(tested.wrong[:6])}")
    return reasons


def _untested(case: Case, verdicts: Sequence[Verdict]) -> list[str]:
    """What no record of this run can speak for."""
    scope = []
    others = [name for name in case.claim.targets if name != case.run.target]
    if others:
        scope.append(f"other targets of the claim: {', '.join(others)}")
    if case.target.role == "development":
        scope.append(
            "any other hardware: a development run exercises the flow and the logic, not the "
            "kernels or the speed of a production system"
        )
    grid = case.target.grid
    scope.append(f"batch above {max(grid.batch)}")
    scope.append(f"contexts above {max(grid.context_tokens)} tokens")
    if case.target.tensor_parallel_size == 1:
        scope.append("tensor parallelism")
    if not max(grid.draft_tokens):
        scope.append("speed with draft tokens")
    elif case.target.drafts.acceptance is not None:
        scope.append("acceptance of draft tokens: it was simulated, for times alone")
    traffic = [] if "mixed" in grid.workload else ["while requests come and go"]
    if "perf" in case.run.stages and not any(verdict.rule == "agent" for verdict in verdicts):
        traffic.append("with agent traffic")
    if traffic:
        scope.append(f"speed {' or '.join(traffic)}")
    shown = {v.cell: v.state for v in verdicts if v.rule == "features"}
    without = [name for name, state in shown.items() if state is not State.PASS]
    if without or not shown:
        scope.append(f"features: {', '.join(without) or 'all'}")
    return scope
