"""From a bundle to one page: what was not tested first, then the answer, then why.

Owns the choice and order of what is shown. Everything comes from the bundle, so a report can be
made again anywhere; stored verdicts are shown as they are (`fasttrack verify` recomputes them).
Read by the writers and by the pipeline, which puts the Markdown form into the bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fasttrack.bundle.reader import Bundle
from fasttrack.report import agent, evidence, origin, timeline
from fasttrack.report.model import Report, Section, clean, rank, table, urgency
from fasttrack.report.tally import Tally, count
from fasttrack.schema import Record, SessionRecord, State, Verdict
from fasttrack.schema.verdict import REASONS

MOST_ROWS = 60
HEADLINES = {
    State.PASS: "Every deciding rule holds for what was tested.",
    State.FAIL: "At least one deciding rule is broken.",
    State.INCONCLUSIVE: "The records do not suffice for an answer.",
}
QUESTIONS = {
    "isolation": "Is it stock with the switch off, and inside its scope?",
    "numerics": "Is every changed op as accurate as the stock op?",
    "hoist": "Does compiled code wait for the kernel ahead before it touches its data?",
    "sanitizer": "Does compute-sanitizer find nothing in it?",
    "path": "Did the specialised path run, and only where claimed?",
    "features": "Does everything users rely on still work?",
    "quality": "Are answers as good as stock's?",
    "prompts": "Do the sweep's prompts use the model's experts as text does?",
    "speed": "Is decoding as fast as claimed?",
    "agent": "Does replayed agent traffic count, and is it no slower?",
    "stages": "Was every stage run?",
}


def build(bundle: Bundle, records: Iterable[Record] | None = None) -> Report:
    """The report of a bundle or of a run folder whose verdicts and provenance are written.

    `records`: the bundle's records, from a caller who has read them already.
    Raises `VerificationFailed` for a bundle that cannot be read. Depends on nothing but the files
    that the manifest covers, so that signing does not change the report.
    """
    claim, run, outcome = bundle.claim, bundle.run, bundle.outcome
    target = claim.targets[run.target]
    tally = count(bundle.records() if records is None else records)
    first_bad = [v for v in bundle.verdicts if v.deciding and rank(v.state) == 0]
    headline = HEADLINES.get(outcome.state, "")
    if first_bad:
        headline += f" First: {first_bad[0].rule} {first_bad[0].cell}: {first_bad[0].detail}"
    checkpoint = target.checkpoint.name if target.checkpoint else "none"
    facts = [
        ("Claim", f"{claim.name} (sha256 {run.claim_sha256[:12]})"),
        ("Sentence", claim.speed.sentence.value.replace("_", " ")),
        ("Switch", f"{claim.switch.key}: {claim.switch.base} -> {claim.switch.candidate}"),
        ("Target", f"{run.target}, engine {target.engine}, checkpoint {checkpoint}, "
                   f"{target.dtype}, TP {target.tensor_parallel_size}, role {target.role}"),
        ("Tier", f"{run.tier.value}, seed {run.seed}, stages {', '.join(run.stages)}"),
        ("Machine", origin.machine_line(bundle.provenance)),
        ("Run", f"{run.run_id}, {run.created_utc}, fasttrack {run.harness_version}"),
        ("Self-test", run.self_test.sentence if run.self_test else "none"),
    ]  # fmt: skip
    if tally.places:
        told = "; ".join(
            f"{count} sessions on node {node} ({machine})"
            for (node, machine), count in tally.places.items()
        )
        facts.append(("Perf ran on a cluster", told))
    if together := [one for one in tally.sessions if one.beside]:
        most = max(len(one.beside) for one in together) + 1
        told = f"{len(together)} sessions, {most} at once; all but one idle at any time"
        facts.append(("Booted together", told))
    if neighbours := _neighbours([one for one in tally.sessions if one.stage != "perf"]):
        told = f"{neighbours} sessions of stages that time nothing"
        facts.append(("Beside each other", told))
    if len({one.machine for one in tally.sessions}) > 1:
        facts.append(("Measured on", origin.machines(bundle.provenance, tally.sessions)))
    if target.baseline_note:
        facts.append(("Baseline", target.baseline_note))
    return Report(
        title=clean(claim.title),
        summary=clean(claim.summary, 2000),
        facts=tuple((name, clean(value, 600)) for name, value in facts),
        untested=tuple(clean(text) for text in outcome.untested),
        outcome=outcome,
        headline=clean(headline, 600),
        not_admissible_because=tuple(clean(text) for text in outcome.not_admissible_because),
        sections=tuple(_sections(bundle, tally)),
        verdicts=bundle.verdicts,
    )


def _neighbours(sessions: Sequence[SessionRecord]) -> int:
    """How many sessions had another one of their machine beside them at some time."""
    in_time = sorted(sessions, key=lambda one: (one.machine, one.start_s))
    found: set[str] = set()
    last: SessionRecord | None = None
    for one in in_time:
        if last is not None and one.machine != last.machine:
            last = None
        if last is not None and one.start_s < last.end_s:
            found |= {one.session, last.session}
        last = one if last is None or one.end_s > last.end_s else last
    return len(found)


def _sections(bundle: Bundle, tally: Tally) -> Iterator[Section]:
    yield _attention(bundle.verdicts)
    yield _by_rule(bundle.verdicts)
    yield evidence.speed(bundle, tally)
    yield agent.section(bundle, tally)
    yield evidence.isolation(bundle)
    yield evidence.paths(bundle, tally)
    yield evidence.proofs(bundle, tally)
    yield timeline.section(tally)
    yield evidence.kernels(bundle, tally)
    yield evidence.features(bundle, tally)
    yield evidence.evals(bundle, tally)
    yield origin.exclusions(bundle, tally)
    yield origin.reproduce(bundle)
    yield origin.provenance(bundle, tally)


def _attention(verdicts: Sequence[Verdict]) -> Section:
    """Everything that is not good, worst first, with its cure."""
    chosen = sorted((v for v in verdicts if rank(v.state) < 2), key=urgency)
    if not chosen:
        text = ("Nothing: every verdict is good.",)
        return Section("What needs attention", text, brief=True)
    rows = [(v.state.value, v.rule, v.cell, v.detail, _cure(v.reason)) for v in chosen]
    columns = ("State", "Rule", "Cell", "What was seen", "How to go on")
    shown = table(columns, rows, MOST_ROWS, prose=True)
    return Section("What needs attention", tables=(shown,), brief=True)


def _cure(reason: str) -> str:
    known = REASONS.get(reason)
    if known is None or known.investigate == "-":
        return reason
    return f"{reason}: {known.investigate}"


def _by_rule(verdicts: Sequence[Verdict]) -> Section:
    """One line per rule, in the order in which rules speak."""
    rows = []
    for rule in dict.fromkeys(v.rule for v in verdicts):
        own = [v for v in verdicts if v.rule == rule]
        rows.append((rule, evidence.states(own), QUESTIONS.get(rule, "")))
    columns = ("Rule", "States", "Question")
    return Section("Verdicts", tables=(table(columns, rows, MOST_ROWS),), brief=True)
