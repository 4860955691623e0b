"""Whether an answer came to its end: one that never does is given up, and those beside it go on."""

from __future__ import annotations

from fasttrack.engine.base import Answer, Request

LATE = "EVL-007"
"""Code at the head of the error of an answer that did not end in time."""


def unended(request: Request, answer: Answer) -> str:
    """Why an answer is not whole, in the words of its record's error; empty for a whole one."""
    if answer.finish_reason in ("stop", "length"):
        return ""
    if answer.finish_reason == "aborted" and request.abort_after_s is not None:
        made = len(answer.token_ids)
        return f"{LATE}: no end within {request.abort_after_s:g} s, given up at {made} tokens"
    return f"ended as {answer.finish_reason!r}"
