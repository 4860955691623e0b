"""Step 12: every answer is scored again, on items made again from the run's seed.

A score decides the quality verdicts, so a stored one is not believed: the same task makes the same
items from seed and plan, and scores the recorded text. What this cannot tell is whether the text is
what the tokens say, or the prompt's digest what the prompt says: both would take the tokenizer.
Read by `steps`.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from fasttrack.bundle import layout
from fasttrack.bundle.documents import model, strict_json
from fasttrack.bundle.reader import Bundle
from fasttrack.errors import VerificationFailed
from fasttrack.evals.manifest import Manifest, Manifests, PlannedItem, sample_name
from fasttrack.evals.scorers import SCORERS
from fasttrack.evals.task import EvalTask, Item, prompt_room
from fasttrack.evals.tasks import registry
from fasttrack.schema import ItemRecord, Record

LOST = "lost"
"""Finish reason of an answer that never came; it scores nothing."""


def check(bundle: Bundle, sourced: Sequence[tuple[str, Record]]) -> int:
    """Number of answers scored again, all as stored.

    Raises `VerificationFailed`: VER-093 another score, VER-094 other items than seed and plan give,
    VER-095 an eval that this version does not have.
    """
    groups: dict[tuple[str, str, str], list[tuple[str, ItemRecord]]] = defaultdict(list)
    for name, record in sourced:
        if isinstance(record, ItemRecord):
            groups[record.eval, record.arm, record.repeat].append((name, record))
    frozen = _frozen(bundle)
    tasks = {task.name: task for task in registry()}
    made: dict[str, dict[str, Item]] = {}
    for (wanted, *_), answers in groups.items():
        if wanted in frozen:
            _check_frozen(frozen[wanted], answers)
            continue
        task = tasks.get(wanted)
        if task is None:
            raise VerificationFailed(
                "VER-095", f"there is no eval {wanted[:80]!r} here", cell=answers[0][0]
            )
        if wanted not in made:
            made[wanted] = _items(bundle, task, answers)
        _check_group(made[wanted], task, answers, bundle.plan["amounts"])
    return sum(map(len, groups.values()))


def _items(
    bundle: Bundle, task: EvalTask, answers: Sequence[tuple[str, ItemRecord]]
) -> dict[str, Item]:
    """The task's items by name. Their number is compared first: a plan may ask for any number."""
    amounts = bundle.plan["amounts"]
    _check_count(amounts, answers)
    target = bundle.claim.targets[bundle.run.target]
    room = prompt_room(target.max_model_len, amounts["answer_tokens"])
    try:
        return {item.id: item for item in task.items(bundle.run.seed, amounts["items"], room)}
    except Exception as error:  # whatever a task raises for a hostile claim, it is not a pass
        raise VerificationFailed(
            "VER-094", f"no such items can be made: {layout.first_line(error)}", cell=answers[0][0]
        ) from error


def _check_count(amounts: Mapping[str, int], answers: Sequence[tuple[str, ItemRecord]]) -> None:
    if len(answers) != amounts["items"]:
        name, first = answers[0]
        raise VerificationFailed(
            "VER-094",
            f"{len(answers)} answers of {first.eval} {first.arm} {first.repeat}, planned are "
            f"{amounts['items']}",
            cell=name,
        )


def _frozen(bundle: Bundle) -> dict[str, Manifest]:
    """Frozen items of external evals, which are those that run and claim name."""
    claimed = bundle.claim.targets[bundle.run.target].evals
    if not claimed and layout.EVALS not in bundle.names and not bundle.run.evals_sha256:
        return {}
    content = bundle.read(layout.EVALS)
    if hashlib.sha256(content).hexdigest() != bundle.run.evals_sha256:
        raise VerificationFailed("VER-094", "not the items that were frozen", cell=layout.EVALS)
    found = model(Manifests, strict_json(content, layout.EVALS), layout.EVALS).manifests
    named = {manifest.eval: manifest for manifest in found}
    if len(named) != len(found) or named.keys() != claimed.keys():
        raise VerificationFailed("VER-094", "not the evals of the claim", cell=layout.EVALS)
    for name, manifest in named.items():
        wanted = claimed[name]  # type: ignore[index]
        told = (manifest.target, manifest.scorer, manifest.answer_tokens, manifest.samples,
                manifest.temperature, manifest.top_p)  # fmt: skip
        if told != (bundle.run.target, SCORERS[name].name, wanted.answer_tokens, wanted.samples,
                    wanted.temperature, wanted.top_p) or (
            wanted.sha256 not in (None, manifest.data_sha256)
        ):  # fmt: skip
            raise VerificationFailed(
                "VER-094", f"the items of {name} are not the claim's", cell=layout.EVALS
            )
    return named


def _check_frozen(manifest: Manifest, answers: Sequence[tuple[str, ItemRecord]]) -> None:
    """One arm's answers to frozen items in one batch composition, as `_check_group`."""
    wanted: dict[str, PlannedItem] = {
        sample_name(item, sample, manifest.samples): item
        for item in manifest.items
        for sample in range(manifest.samples)
    }
    if len(answers) != len(wanted):
        raise VerificationFailed(
            "VER-094",
            f"{len(answers)} answers of {manifest.eval}, {len(wanted)} are frozen",
            cell=answers[0][0],
        )
    scorer = SCORERS[manifest.eval]
    for name, record in answers:
        item = wanted.get(record.item)
        if item is None or record.prompt_sha256 != item.prompt_sha256:
            raise VerificationFailed(
                "VER-094", f"{record.item[:80]!r} is no frozen item, or has another prompt",
                cell=name,
            )  # fmt: skip
        if len(record.token_ids) > manifest.answer_tokens and not record.error:
            raise VerificationFailed(
                "VER-094", f"{record.item}: {len(record.token_ids)} tokens are too many", cell=name
            )
        lost = record.finish_reason == LOST
        score = 0.0 if lost else scorer.score(item.prefix, item.answer, record.text)
        if not math.isclose(score, record.score, rel_tol=0.0, abs_tol=1e-12):
            raise VerificationFailed(
                "VER-093",
                f"{record.item} in {record.arm}: stored {record.score:g}, its text scores "
                f"{score:g}",
                cell=name,
            )


def _check_group(
    items: Mapping[str, Item],
    task: EvalTask,
    answers: Sequence[tuple[str, ItemRecord]],
    amounts: Mapping[str, int],
) -> None:
    """One arm's answers in one batch composition: planned items, own prompts, true scores."""
    _check_count(amounts, answers)
    prompts: dict[str, str] = {}
    for name, record in answers:
        item = items.get(record.item)
        if item is None:
            raise VerificationFailed(
                "VER-094", f"seed and plan give no item {record.item[:80]!r}", cell=name
            )
        if prompts.setdefault(record.prompt_sha256, item.prompt) != item.prompt:
            raise VerificationFailed(
                "VER-094", f"{record.item} has the prompt of another item", cell=name
            )
        if len(record.token_ids) > amounts["answer_tokens"]:
            raise VerificationFailed(
                "VER-094", f"{record.item}: {len(record.token_ids)} tokens are too many", cell=name
            )
        score = 0.0 if record.finish_reason == LOST else task.score(item, record.text)
        if not math.isclose(score, record.score, rel_tol=0.0, abs_tol=1e-12):
            raise VerificationFailed(
                "VER-093",
                f"{record.item} in {record.arm}: stored {record.score:g}, its text scores "
                f"{score:g}",
                cell=name,
            )
