"""Freezes the items of external evals: data, rendered prompts and scorer, before any run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fasttrack.engine.setting import Setting
from fasttrack.errors import UsageError
from fasttrack.evals import manifest as frozen
from fasttrack.evals.external import data
from fasttrack.evals.external.run import check_installed
from fasttrack.evals.scorers import SCORERS
from fasttrack.evals.source import locate
from fasttrack.schema import Record


def prepare(setting: Setting) -> tuple[frozen.Manifest, ...]:
    """Manifests of all external evals of a target, from one session of base; writes nothing.

    Raises what `source.locate` raises, `UsageError` EVL-001..003 for the data, EVL-004 for an item
    that does not fit the context, all before the engine is started but for the last.
    """
    check_installed()
    from fasttrack.evals.external import harness

    wanted = setting.target.evals
    files = locate(setting.claim, setting.target_name, setting.folder, setting.data)
    digests, rows = {}, {}
    for name in sorted(wanted):
        digests[name] = frozen.data_digest(files[name], wanted[name].sha256, name)
        rows[name] = data.rows(name, files[name])
    if not rows:
        return ()
    made = []
    ended: list[Record] = []
    with setting.session("evals", "evals-prepare", "base", ended) as session:
        for name in rows:
            setting.say(f"rendering {len(rows[name])} prompts of {name}")
            found: dict[int, str] = {}

            def collect(
                asked: Sequence[tuple[int, int, str]], found: dict[int, str] = found
            ) -> list[str]:
                found.update({row: prompt for row, _, prompt in asked})
                return ["" for _ in asked]

            external = wanted[name]
            harness.evaluate(
                name, rows[name], external.samples, external.answer_tokens, session.chat, collect
            )
            prompts = session.encode([found[row] for row in range(len(rows[name]))])
            answers = session.encode([row["answer"] for row in rows[name]])
            items = tuple(
                _item(name, index, row, prompt, len(prompt) + len(answer))
                for index, (row, prompt, answer) in enumerate(
                    zip(rows[name], prompts, answers, strict=True)
                )
            )
            _check_room(setting, name, items)
            made.append(
                frozen.Manifest(
                    eval=name,
                    target=setting.target_name,
                    harness=frozen.HARNESS,
                    scorer=SCORERS[name].name,
                    data_sha256=digests[name],
                    answer_tokens=external.answer_tokens,
                    samples=external.samples,
                    temperature=external.temperature,
                    top_p=external.top_p,
                    items=items,
                )
            )
    return tuple(made)


def _item(
    name: str, index: int, row: dict[str, Any], prompt: Sequence[int], tokens: int
) -> frozen.PlannedItem:
    needles = int(row.get("n_needles", 0))
    return frozen.PlannedItem(
        id=f"{name}-{needles}n-{index}" if needles else f"{name}-{index}",
        prompt_sha256=frozen.prompt_digest(prompt),
        prompt_tokens=len(prompt),
        bin=frozen.length_bin(tokens),
        needles=needles,
        prefix=row.get("random_string_to_prepend", ""),
        answer=row["answer"],
    )


def _check_room(setting: Setting, name: str, items: Sequence[frozen.PlannedItem]) -> None:
    room = setting.target.max_model_len - setting.target.evals[name].answer_tokens  # type: ignore[index]
    long = [item for item in items if item.prompt_tokens > room]
    if long:
        raise UsageError(
            "EVL-004",
            f"{len(long)} of {len(items)} items of {name} leave no room for their answers: "
            f"{long[0].id} has {long[0].prompt_tokens} tokens, {max(room, 0)} fit",
            next_step="raise max_model_len, lower answer_tokens, or use a file of shorter items",
            cell=name,
        )
