"""External evals in one arm: frozen items through lm-eval, and once more one at a time."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fasttrack.engine.setting import Setting
from fasttrack.errors import EnvironmentUnmet, UsageError
from fasttrack.evals import manifest as frozen
from fasttrack.evals.external import data
from fasttrack.evals.external.asker import Asker, Place, check_prompts
from fasttrack.evals.external.journal import Journal
from fasttrack.evals.source import locate
from fasttrack.schema import Arm, ItemRecord, MonitorRecord, Record

CONTROL_CONCURRENCY = 1
SAME = "samples of different seeds are all equal"


def check_installed() -> None:
    """Raise `EnvironmentUnmet` ENV-001 where lm-eval is not installed."""
    for package in ("datasets", "lm_eval"):
        if importlib.util.find_spec(package) is None:
            raise EnvironmentUnmet(
                "ENV-001",
                f"external evals need the package {package!r}",
                next_step="pip install 'fasttrack[evals]'",
            )


def run(setting: Setting, arm: Arm, name: str) -> list[Record]:
    """All records of an external eval in one arm.

    Raises `UsageError` EVL-006 when the rendered prompts are not the frozen ones, what
    `manifest.load` and `data.rows` raise, and the engine's error if it cannot be started at all.
    """
    check_installed()
    from fasttrack.evals.external import harness

    if setting.target.evals[name].server:  # type: ignore[index]
        from fasttrack.evals.external.served import served

        setting = replace(setting, engine=served(setting.engine))
    wanted = setting.target.evals[name]  # type: ignore[index]
    named = setting.claim, setting.target_name, setting.folder, setting.data
    manifest = frozen.load(*named).of(name)
    rows = data.rows(name, locate(*named)[name])
    path = setting.journal / f"{name}-{arm}.jsonl" if setting.journal else None
    journal = Journal(path)
    concurrency = max(setting.target.grid.batch)
    main: dict[Place, ItemRecord] = {}
    with Asker(setting, arm, manifest, journal) as asker:

        def ask(asked: Sequence[tuple[int, int, str]]) -> list[str]:
            texts = {row: prompt for row, _, prompt in asked}
            prompts = asker.encode([texts[row] for row in range(len(manifest.items))])
            odd = check_prompts(manifest, prompts)
            if odd:
                raise UsageError(
                    "EVL-006",
                    f"the prompts of {len(odd)} items of {name} are rendered otherwise in {arm} "
                    f"than they were frozen, first {manifest.items[odd[0]].id}",
                    next_step="look for a changed chat template or tokenizer; prepare again if it "
                    "was meant",
                    cell=name,
                )
            places = [(row, sample) for row, sample, _ in asked]
            size = min(concurrency, len(places))
            main.update(asker.ask(places, prompts, "main", size))
            asker.ask(places[::-1], prompts, "control", CONTROL_CONCURRENCY)
            return [main[place].text for place in places]

        scores = harness.evaluate(name, rows, wanted.samples, wanted.answer_tokens, asker.chat, ask)
    return [
        *_judged(journal.records(), manifest, main, scores),
        MonitorRecord(
            stage="evals",
            session=f"evals-{name}-{arm}",
            values={"boots": journal.boots, "resumed_answers": journal.resumed},
        ),
    ]


def _judged(
    records: Sequence[Record],
    manifest: frozen.Manifest,
    main: Mapping[Place, ItemRecord],
    scores: Sequence[float],
) -> list[Record]:
    """The records, with what only all answers together can tell as their error."""
    errors: dict[str, str] = {}
    samples = manifest.samples
    by_row = [[main[row, s] for s in range(samples)] for row in range(len(manifest.items))]
    for answers, told in zip(by_row, scores, strict=True):
        ours = sum(answer.score for answer in answers) / samples
        if abs(ours - told) > 1e-9:
            for answer in answers:
                errors[answer.item] = f"lm-eval scores {told:g}, {manifest.scorer} {ours:g}"
    whole = [
        [tuple(answer.token_ids) for answer in answers if not answer.error] for answers in by_row
    ]
    if samples > 1 and all(len(ids) > 1 and len(set(ids)) == 1 for ids in whole):
        errors.update({answer.item: SAME for answer in main.values()})
    return [
        record.model_copy(update={"error": record.error or errors[record.item]})
        if isinstance(record, ItemRecord) and record.item in errors
        else record
        for record in records
    ]
