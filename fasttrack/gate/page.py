"""The gate's answer as Markdown for a job summary or a comment, and as JUnit XML.

Owns the words around findings and the limits of the places they go to. Everything from a bundle or
a repository is escaped as in reports; the tables of codes are Markdown. Read by the CLI.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from fasttrack.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, EXIT_REJECTED
from fasttrack.gate.findings import DEMANDS, Decision, Finding, GateResult
from fasttrack.report.markdown import LIMIT, escape
from fasttrack.report.model import clean
from fasttrack.verify.codes import CODES
from fasttrack.verify.steps import Verification

MAX_SUMMARY_BYTES = 2**20
"""GitHub drops a step's whole summary when it is larger."""
MAX_NAMED = 40
MAX_TEXT = 1500
HEADLINES = {
    EXIT_PASS: "The evidence is admissible and every rule holds",
    EXIT_INCONCLUSIVE: "The evidence does not suffice",
    EXIT_FAIL: "A rule of the claim is broken",
    EXIT_REJECTED: "A result file cannot be trusted",
}


def headline(result: GateResult) -> str:
    """The answer in one line."""
    nothing = not any(decision.kind != "change" for decision in result.decisions)
    if nothing and result.status == EXIT_PASS:
        return "No optimization is touched: no evidence is needed"
    return HEADLINES[result.status]


def markdown(result: GateResult) -> str:
    """The page, at most `LIMIT` bytes: it fits a comment (65,536 characters) and a summary.

    Blocks that do not fit are counted; what decides comes first.
    """
    facts = [f"| {_safe(name)} | {_safe(value)} |" for name, value in result.facts]
    lines = [f"# {headline(result)}", "", f"Exit status {result.status}."]
    if facts:
        lines += ["", "| | |", "| --- | --- |", *facts]
    text = "\n".join([*lines, ""])
    decisions = sorted(result.decisions, key=lambda decision: decision.status == EXIT_PASS)
    for index, decision in enumerate(decisions):
        block = "\n".join([*_block(decision), ""])
        left = f"\n{len(decisions) - index} more: `fasttrack gate --json`.\n"
        if len((text + block + left).encode("utf-8")) > LIMIT:
            return text + left
        text += block
    return text


def _block(decision: Decision) -> Iterator[str]:
    yield ""
    yield f"## {decision.kind.capitalize()} {_safe(decision.name)}: " + (
        "nothing in the way" if decision.status == EXIT_PASS else f"exit status {decision.status}"
    )
    yield ""
    yield from (_line(finding) for finding in decision.findings[:MAX_NAMED])
    if decision.refused is not None and decision.refused.code in CODES:
        known = CODES[decision.refused.code]
        yield f"- {known.meaning} {known.cure}"
    yield from (f"- Note: {_safe(note)}" for note in decision.notes[:MAX_NAMED])
    if decision.verification is not None:
        yield from _checked(decision.verification)


def _line(finding: Finding) -> str:
    demand = DEMANDS[finding.code]
    if finding.waived:
        return f"- **{finding.code}** {_safe(finding.text)} ({_safe(finding.waived)})"
    return f"- **{finding.code}** {demand.meaning} {_safe(finding.text)}. To do: {demand.cure}"


def _checked(found: Verification) -> Iterator[str]:
    run = found.run
    yield ""
    yield (
        f"{_safe(found.claim.title)}: {found.outcome.state.value} on {_safe(run.target)}, tier "
        f"{run.tier.value}, source {_safe(found.provenance.source.get('commit'))}."
    )
    yield ""
    yield "| Step | What was checked |"
    yield "| --- | --- |"
    yield from (f"| {step.number} {step.name} | {_safe(step.detail)} |" for step in found.steps)


def append_summary(path: Path, text: str) -> bool:
    """Add a page to a step's summary file, unless it would make the whole too large."""
    before = path.stat().st_size if path.exists() else 0
    if before + len(text.encode("utf-8")) > MAX_SUMMARY_BYTES:
        return False
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    return True


def junit(result: GateResult) -> str:
    """One test case per finding, and one that passes for each decision without any.

    `clean` leaves no character that XML forbids.
    """
    suite = ElementTree.Element("testsuite", name="fasttrack gate")
    failures = skipped = tests = 0
    for decision in result.decisions:
        subject = f"{decision.kind} {decision.name}"
        for finding in decision.findings:
            tests += 1
            case = _case(suite, subject, finding.code)
            skipped += bool(finding.waived)
            failures += not finding.waived
            told = ElementTree.SubElement(
                case,
                "skipped" if finding.waived else "failure",
                message=clean(finding.text),
            )
            told.text = clean(finding.waived or DEMANDS[finding.code].cure)
        if not decision.findings:
            tests += 1
            _case(suite, subject, "no findings")
    suite.set("tests", str(tests))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    suite.set("skipped", str(skipped))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, subject: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=clean(subject), name=name)


def _safe(text: object) -> str:
    return escape(clean(text, MAX_TEXT))
