"""A report as JUnit XML, which every CI shows: one test case per verdict.

Bad verdicts are failures; open ones (missing, inconclusive, invalid) are errors, so that a CI that
knows only green and red never shows an unproved claim as green. Verdicts that only inform others
are skipped unless good. Read by the CLI.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from fasttrack.report.model import Report, clean
from fasttrack.schema import State
from fasttrack.schema.verdict import BAD, GOOD

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """The XML document."""
    suite = ElementTree.Element("testsuite", name=_text(report.title))
    counts = {"failure": 0, "error": 0, "skipped": 0}
    for verdict in report.verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_text(verdict.rule), name=_text(verdict.cell)
        )
        if verdict.state in GOOD:
            continue
        bad = verdict.state in BAD or verdict.state is State.NOT_EXERCISED
        tag = "skipped" if not verdict.deciding else "failure" if bad else "error"
        counts[tag] += 1
        told = ElementTree.SubElement(case, tag, message=_text(verdict.detail))
        told.text = _text(f"{verdict.state.value} {verdict.reason} {verdict.next}")
    suite.set("tests", str(len(report.verdicts)))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _text(value: str) -> str:
    return _NOT_XML.sub("?", clean(value))
