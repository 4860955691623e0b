"""What vLLM's scheduler planned for each step, and what came of its drafts.

A step is counted as it is scheduled, so that its length can be read beside what it ran. Knows
vLLM's scheduler output; imports nothing of vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


class Steps:
    """Steps with tokens since `clear`, in the order in which they were scheduled."""

    def __init__(self, scheduler: Any) -> None:
        """Watch a scheduler from now on."""
        self.scheduled: list[tuple[int, int]] = []
        """Decode tokens and prefill tokens of each."""
        self.contexts: list[int] = []
        """Tokens of context over the rows of each, after it."""
        self.drafted: list[int] = []
        """Indices of those that verify drafts."""
        self.seen: Counter[str] = Counter()
        """Requests that were `preempted`, `nan` logits, tokens `drafted` and `accepted`."""
        schedule, update = scheduler.schedule, scheduler.update_from_output

        def scheduled(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            if output.total_num_scheduled_tokens:
                if output.scheduled_spec_decode_tokens:
                    self.drafted.append(len(self.scheduled))
                self.scheduled.append(split(output, scheduler.requests))
                self.contexts.append(_context(output))
            self.seen["preempted"] += len(output.preempted_req_ids or ())
            return output

        def updated(asked: Any, made: Any) -> Any:
            self.seen["nan"] += sum((made.num_nans_in_logits or {}).values())
            for name, drafts in asked.scheduled_spec_decode_tokens.items():
                kept = made.sampled_token_ids[made.req_id_to_index[name]]
                self.seen["drafted"] += len(drafts)
                self.seen["accepted"] += max(0, len(kept) - 1)
            return update(asked, made)

        scheduler.schedule, scheduler.update_from_output = scheduled, updated

    def clear(self) -> None:
        """Forget all of it."""
        for kept in (self.scheduled, self.contexts, self.drafted, self.seen):
            kept.clear()


def split(output: Any, requests: Mapping[str, Any]) -> tuple[int, int]:
    """(decode tokens, prefill tokens) of a scheduler output.

    A row decodes when all of its prompt was computed before this step and it runs one token, or
    one token and its drafts; everything else, recomputation after preemption included, is prefill.
    """
    computed = dict(
        zip(
            output.scheduled_cached_reqs.req_ids,
            output.scheduled_cached_reqs.num_computed_tokens,
            strict=True,
        )
    )
    decode = prefill = 0
    for name, tokens in output.num_scheduled_tokens.items():
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        request = requests.get(name)
        if (
            name in computed
            and request is not None
            and computed[name] >= request.num_prompt_tokens
            and tokens == 1 + drafts
        ):
            decode += tokens
        else:
            prefill += tokens
    return decode, prefill


def _context(output: Any) -> int:
    """Tokens of context over the rows of a scheduler output, after its step."""
    before = sum(output.scheduled_cached_reqs.num_computed_tokens)
    before += sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
    return int(before + output.total_num_scheduled_tokens)
