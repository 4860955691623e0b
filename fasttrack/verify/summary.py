"""A verified or refused file as Markdown, for a CI's job summary.

Owns the words only. Everything from a bundle is escaped as in reports. Read by the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fasttrack.errors import VerificationFailed
from fasttrack.report.markdown import LIMIT, escape
from fasttrack.report.model import clean
from fasttrack.verify.codes import CODES
from fasttrack.verify.steps import Verification

MOST_REASONS = 40


def page(headline: str, blocks: Sequence[str]) -> str:
    """The whole summary; blocks that do not fit are counted."""
    text = f"# {headline}\n"
    for index, block in enumerate(blocks):
        left = f"\n{len(blocks) - index} more files: `fasttrack gate --json`.\n"
        if len((text + block + left).encode("utf-8")) > LIMIT:
            return text + left
        text += block
    return text


def block(
    path: Path,
    found: Verification | None,
    refused: VerificationFailed | None,
    reasons: Sequence[str],
    notes: Sequence[str],
) -> str:
    """One file: the answer, what stands in the way, and what was checked."""
    lines = ["", f"## {_safe(path.name)}", ""]
    if refused is not None:
        lines += [f"**Refused**, {_safe(refused.code)} in {_safe(refused.cell)}.", ""]
        lines.append(_safe(refused.cause))
        known = CODES.get(refused.code)
        if known:
            lines += ["", f"{escape(known.meaning)} {escape(known.cure)}"]
        return "\n".join([*lines, ""])
    lines += [f"- {_safe(reason)}" for reason in reasons[:MOST_REASONS]]
    lines += [f"- Note: {_safe(note)}" for note in notes]
    if found is not None:
        run = found.run
        lines += [
            "",
            f"{_safe(found.claim.title)}: {found.outcome.state.value} on {_safe(run.target)}, tier "
            f"{run.tier.value}, source {_safe(found.provenance.source.get('commit'))}.",
            "",
            "| Step | What was checked |",
            "| --- | --- |",
            *(f"| {s.number} {s.name} | {_safe(s.detail)} |" for s in found.steps),
        ]
    return "\n".join([*lines, ""])


def _safe(text: object) -> str:
    return escape(clean(text))
