"""Stop strings and stop token ids end an answer where they appear, with the right text and reason.

The answers are held to plain letters, so that a stop string may span several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fasttrack.correctness.features.probe import Facts, Feature, Probe, equal, greedy
from fasttrack.engine.base import Request
from fasttrack.schema import Check

TOKENS = 24
LETTERS = "abcdefghijklmnop"
SPAN = slice(6, 9)


def observe(probe: Probe) -> Facts:
    """An answer left alone, ended by a piece of it (kept or not), ended by a token of it."""
    prompt = probe.prompt(20)
    letters = tuple(ids[0] for ids in probe.session.encode(list(LETTERS)))

    def ask(**more: Any) -> Request:
        return Request(prompt=prompt, sampling=greedy(TOKENS, allowed_token_ids=letters, **more))

    (free,) = probe.ask([ask()])
    stop = free.text[SPAN]
    end = free.text.index(stop)
    token = free.token_ids[SPAN.start]
    before = free.token_ids.index(token)
    left_out, kept, ended, absent = probe.ask(
        [
            ask(stop=(stop,)),
            ask(stop=(stop,), include_stop_str_in_output=True),
            ask(stop_token_ids=(token,)),
            ask(stop=("Z",)),
        ]
    )
    return {
        "ids": [list(free.token_ids)],
        "gaps": [list(free.gaps)],
        "span": len(stop),
        "reasons": [left_out.finish_reason, kept.finish_reason, ended.finish_reason],
        "named": [left_out.stop_reason == stop, kept.stop_reason == stop],
        "named_token": ended.stop_reason == token,
        "text_left_out": left_out.text == free.text[:end],
        "text_kept": kept.text == free.text[: end + len(stop)],
        "tokens_before": len(ended.token_ids) - 1 == before,
        "absent": absent.token_ids == free.token_ids and absent.finish_reason == "length",
    }


def checks(facts: Facts, base: Facts | None) -> Sequence[Check]:
    """See the module docstring."""
    return [
        equal("tokens_spanned", facts["span"], SPAN.stop - SPAN.start),
        equal("finish_reasons", ",".join(facts["reasons"]), "stop,stop,stop"),
        equal("stop_string_named", all(facts["named"]), True),
        equal("stop_token_named", facts["named_token"], True),
        equal("text_ends_before_stop", facts["text_left_out"], True),
        equal("text_ends_with_stop_if_asked", facts["text_kept"], True),
        equal("stop_token_ends_at_once", facts["tokens_before"], True),
        equal("other_strings_do_not_stop", facts["absent"], True),
    ]


FEATURE = Feature("stop_strings", observe, checks)
