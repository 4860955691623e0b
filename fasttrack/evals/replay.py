"""Base's own answers, forced on an arm through the decode path: the strongest look at a token path.

Freely generated answers can be compared only up to where they part. Forced, every position of
every answer is compared: the arm computes its own probabilities, but goes on from base's tokens.
Base itself is forced once more in another batch composition; that is the noise of stock against
stock. Owns the measurement; the rule is `rules.replay`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fasttrack.engine.base import Request, Sampling, Session
from fasttrack.engine.setting import Setting, path_record
from fasttrack.evals.ended import unended
from fasttrack.evals.manifest import prompt_digest
from fasttrack.evals.task import EvalTask, Item
from fasttrack.schema import Arm, ItemRecord, Record

GROUPS = 3
"""Base's replay runs in so many parts, in reverse order: another composition than its answers."""


def possible(setting: Setting) -> bool:
    """Whether the target's engine can force tokens: not beside drafts, which it must verify."""
    return "speculative_config" not in setting.target.engine_args


def answers_of_base(name: str, records: Iterable[Record]) -> dict[str, tuple[int, ...]]:
    """Tokens of base's answers to the items of an eval."""
    return {
        record.item: tuple(record.token_ids)
        for record in records
        if isinstance(record, ItemRecord)
        and (record.eval, record.arm, record.repeat) == (name, "base", "main")
        and not record.error
    }


def run(
    setting: Setting,
    session: Session,
    arm: Arm,
    task: EvalTask,
    items: Sequence[Item],
    prompts: Sequence[tuple[int, ...]],
    said: Mapping[str, tuple[int, ...]],
    together: int,
) -> list[Record]:
    """An arm's replay of what base `said`; items that base did not answer are left out.

    `together`: concurrency of base's answers, and of the candidate's replay.
    """
    order = [i for i, item in enumerate(items) if said.get(item.id)]
    if arm == "base":
        order.reverse()
        together = max(1, together // GROUPS)
    records: list[Record] = []
    for start in range(0, len(order), together):
        chosen = order[start : start + together]
        requests = [_request(prompts[i], said[items[i].id], setting.timeout_s) for i in chosen]
        made = session.generate(requests)
        cell = f"evals/{task.name}/replay/concurrency={together}"
        records.append(path_record("evals", f"evals-{arm}", arm, cell, made))
        for i, request, answer in zip(chosen, requests, made.answers, strict=False):
            records.append(
                ItemRecord(
                    eval=task.name,
                    item=items[i].id,
                    prompt_sha256=prompt_digest(prompts[i]),
                    arm=arm,
                    repeat="replay",
                    concurrency=together,
                    prompt_tokens=len(prompts[i]),
                    cached_tokens=answer.cached_tokens,
                    token_ids=answer.token_ids,
                    text=answer.text,
                    logprobs=answer.logprobs,
                    gaps=answer.gaps,
                    ranks=answer.ranks,
                    finish_reason=answer.finish_reason,
                    score=task.score(items[i], answer.text),
                    error=unended(request, answer),
                )
            )
    return records


def _request(prompt: tuple[int, ...], tokens: tuple[int, ...], limit_s: float) -> Request:
    sampling = Sampling(max_tokens=len(tokens), forced=tokens, logprobs=2, ignore_eos=True)
    return Request(prompt=prompt, sampling=sampling, abort_after_s=limit_s)
