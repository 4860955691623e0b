"""Stage 5: both arms answer the same items, as many at a time as the claim goes, and one at a time.

Then base's answers are forced on both arms, token by token: see `replay`. Every round starts with
an empty prefix cache, so that no answer rests on what another computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fasttrack.engine.base import Request, Sampling, Session
from fasttrack.engine.setting import Setting, path_record
from fasttrack.evals import replay
from fasttrack.evals.ended import unended
from fasttrack.evals.external.run import run as external
from fasttrack.evals.manifest import prompt_digest
from fasttrack.evals.task import EvalTask, Item, prompt_room
from fasttrack.evals.tasks import registry
from fasttrack.schema import Arm, ItemRecord, Record

CONTROL_CONCURRENCY = 1


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """All tasks in one arm, in one engine session."""
    if "external" in spec:
        return external(setting, spec["arm"], spec["external"])
    arm: Arm = spec["arm"]
    name = f"evals-{arm}"
    records: list[Record] = []
    forces = replay.possible(setting)
    with setting.session("evals", name, arm, records, forces=forces) as session:
        for task in registry():
            room = prompt_room(setting.target.max_model_len, spec["answer_tokens"])
            items = task.items(setting.seed, spec["items"], room)
            prompts = session.encode([item.prompt for item in items])
            together = min(len(items), max(setting.target.grid.batch))
            rounds: tuple[tuple[Literal["main", "control"], int], ...] = (
                ("main", together),
                ("control", CONTROL_CONCURRENCY),
            )
            for repeat, concurrency in rounds:
                session.reset_prefix_cache()
                setting.say(f"{task.name} ({arm}, {concurrency} at a time)")
                records.extend(
                    _ask(setting, session, arm, task, items, prompts, repeat, concurrency, spec)
                )
            if forces:
                session.reset_prefix_cache()
                setting.say(f"{task.name} ({arm}, replay)")
                said = replay.answers_of_base(task.name, [*setting.earlier(), *records])
                records.extend(
                    replay.run(setting, session, arm, task, items, prompts, said, together)
                )
    return records


def _ask(
    setting: Setting,
    session: Session,
    arm: Arm,
    task: EvalTask,
    items: Sequence[Item],
    prompts: Sequence[tuple[int, ...]],
    repeat: Literal["main", "control"],
    concurrency: int,
    spec: Mapping[str, Any],
) -> list[Record]:
    records: list[Record] = []
    longest = min(spec["answer_tokens"], task.answer_tokens or spec["answer_tokens"])
    sampling = Sampling(max_tokens=longest, logprobs=2, ignore_eos=False)
    order = list(range(len(items)))
    if repeat == "control":
        order.reverse()
    for start in range(0, len(order), concurrency):
        chosen = order[start : start + concurrency]
        requests = [
            Request(prompt=prompts[i], sampling=sampling, abort_after_s=setting.timeout_s)
            for i in chosen
        ]
        made = session.generate(requests)
        cell = f"evals/{task.name}/{repeat}/concurrency={concurrency}"
        records.append(path_record("evals", f"evals-{arm}", arm, cell, made))
        missing = len(chosen) - len(made.answers)
        answers = [*made.answers, *([None] * missing)]
        for i, request, answer in zip(chosen, requests, answers, strict=True):
            told = unended(request, answer) if answer else ""
            records.append(
                ItemRecord(
                    eval=task.name,
                    item=items[i].id,
                    prompt_sha256=prompt_digest(prompts[i]),
                    arm=arm,
                    repeat=repeat,
                    concurrency=concurrency,
                    prompt_tokens=len(prompts[i]),
                    cached_tokens=answer.cached_tokens if answer else 0,
                    token_ids=answer.token_ids if answer else (),
                    text=answer.text if answer else "",
                    logprobs=answer.logprobs if answer else (),
                    gaps=answer.gaps if answer else (),
                    finish_reason=answer.finish_reason if answer else "lost",
                    score=task.score(items[i], answer.text) if answer else 0.0,
                    error=told or ("" if answer and answer.token_ids else "no answer"),
                )
            )
    return records
