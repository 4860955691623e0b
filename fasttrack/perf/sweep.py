"""Stage 6: one engine session of one arm, through every cell of the grid.

What a cell asks is in `traffic`. All steps are kept; the rule cuts the window. Cells that earlier
blocks have settled are left out: a unit without cells boots nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from fasttrack.engine.base import Generation, Session
from fasttrack.engine.setting import AS_TARGETED, Setting, Variant, path_record
from fasttrack.errors import RunError
from fasttrack.perf import monitors, prompts, routing, traffic
from fasttrack.perf.agent import replay
from fasttrack.perf.window import WARM_UP_STEPS
from fasttrack.schema import Arm, Cell, MonitorRecord, Record, RefusalRecord, SampleRecord
from fasttrack.schema.claim import Shape

DEFAULT_BUDGET = 2048


@dataclass(frozen=True)
class Boot:
    """What a unit boots."""

    name: str
    arm: Arm
    variant: Variant
    cells: tuple[Cell, ...]
    """What is measured in it, in order."""


def boot_of(setting: Setting, spec: Mapping[str, Any]) -> Boot | None:
    """What a unit of decode, prefill or mixed cells boots; None when nothing is left to measure."""
    cells = () if "agent" in spec else tuple(_cells(setting, spec))
    if not cells:
        return None
    name = f"perf-b{spec['block']}-{spec['position']}-{spec['arm']}"
    return Boot(name, spec["arm"], _variant(setting, Shape(*spec["shape"])), cells)


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """Measure all cells in one boot, or replay agent traffic in it."""
    if "agent" in spec:
        return replay.run(setting, spec)
    boot = boot_of(setting, spec)
    if boot is None:
        return []
    shape = Shape(*spec["shape"])
    passages = prompts.load(setting.target.prompts, setting.folder)
    try:
        return _measure(setting, spec, boot, passages)
    except RunError as error:
        refused = error.code in ("ENG-001", "ENG-007")
        if not refused or shape == (setting.target.tensor_parallel_size, 1, 0):
            raise
        # An engine that this machine or the model cannot have: the rule says whose fault it is.
        return [
            RefusalRecord(
                session=boot.name,
                arm=boot.arm,
                shape=shape.name,
                code=error.code,
                cause=error.cause[:1000],
            )
        ]


def _variant(setting: Setting, shape: Shape) -> Variant:
    """How to boot for cells of a shape."""
    arguments: dict[str, Any] = {}
    if shape.tensor_parallel_size != setting.target.tensor_parallel_size:
        arguments["tensor_parallel_size"] = shape.tensor_parallel_size
    if shape.decode_context_parallel_size > 1:
        arguments["decode_context_parallel_size"] = shape.decode_context_parallel_size
    if shape.draft_tokens:
        arguments |= setting.target.drafts.arguments(shape.draft_tokens)
    return Variant(shape.name, arguments) if arguments else AS_TARGETED


def _measure(
    setting: Setting, spec: Mapping[str, Any], boot: Boot, passages: prompts.Passages
) -> list[Record]:
    records: list[Record] = []
    name, arm, cells = boot.name, boot.arm, boot.cells
    with setting.session("perf", name, arm, records, boot.variant) as session:
        longest = max(cell.context_tokens for cell in cells)
        text = prompts.corpus(passages.texts, setting.seed, 8 * longest)
        corpus = session.encode([text])[0]
        facts = {
            "prompt_set_sha256": passages.sha256,
            "token_evenness": prompts.evenness(corpus),
        }
        with monitors.Watch(setting.gpus) as watch:
            for index, cell in enumerate(cells):
                setting.say(f"{name}: {cell.id} ({index + 1}/{len(cells)})")
                made = _cell(setting, session, name, arm, cell, corpus, spec)
                records += [
                    r.model_copy(update=facts) if isinstance(r, SampleRecord) else r for r in made
                ]
        if arm == "base" and not spec["block"]:
            sent = _sent(setting, session, cells, corpus)
            records += routing.measure(session, name, sent)
    own = {"own_gpus": ",".join(map(str, setting.gpus))} if setting.gpus else {}
    values = {**watch.values, **setting.place, **own}
    records.append(MonitorRecord(stage="perf", session=name, values=values))
    return records


def _cells(setting: Setting, spec: Mapping[str, Any]) -> list[Cell]:
    """What this block still has to measure, in an order of its own that its sessions share."""
    block = spec["block"]
    done = setting.settled(block, spec["pairs"]) if block else frozenset()
    cells = [
        cell
        for cell in setting.claim.cells(setting.target_name)
        if cell.shape == tuple(spec["shape"])
        and cell.id not in done
        and not setting.target.grid.unsupported_because(cell.id)
        and (not setting.cell or fnmatch(cell.id, setting.cell))
    ]
    random.Random(f"cells/{setting.seed}/{block}").shuffle(cells)
    return cells


def _sent(
    setting: Setting, session: Session, cells: Sequence[Cell], corpus: Sequence[int]
) -> dict[int, list[tuple[int, ...]]]:
    """Of each context length, the prompts of the cell with the most of them."""
    widest = {cell.context_tokens: cell for cell in sorted(cells, key=lambda cell: cell.batch)}
    return {
        context: _prompts(setting, session, cell, corpus, cell.batch)
        for context, cell in widest.items()
    }


def _cell(
    setting: Setting,
    session: Session,
    name: str,
    arm: Arm,
    cell: Cell,
    corpus: Sequence[int],
    spec: Mapping[str, Any],
) -> list[Record]:
    budget = session.info.fingerprint.get("max_num_batched_tokens")
    work = traffic.Work(
        cell=cell,
        window_steps=spec["window_steps"],
        budget=budget if isinstance(budget, int) else DEFAULT_BUDGET,
        room=setting.target.max_model_len - cell.context_tokens,
    )
    asked = _prompts(setting, session, cell, corpus, work.prompts)
    made = []
    start = time.monotonic()
    for call in traffic.calls(work, asked):
        made.append(
            session.generate(
                call.requests,
                full_decode_steps=call.full_decode_steps,
                lane_tokens=call.lane_tokens,
                mark_after=WARM_UP_STEPS if call.full_decode_steps else None,
            )
        )
    whole = joined(made)
    sample = SampleRecord(
        cell=cell.id,
        arm=arm,
        session=name,
        block=spec["block"],
        position=spec["position"],
        planned_requests=len(asked),
        completed_requests=len(whole.answers),
        prompt_tokens=sum(map(len, asked)),
        cached_tokens=sum(answer.cached_tokens for answer in whole.answers),
        output_tokens=sum(len(answer.token_ids) for answer in whole.answers),
        call_s=time.monotonic() - start,
        marks=whole.marks,
        steps=whole.steps,
        emitted=whole.emitted,
        contexts=whole.contexts,
        device_s=whole.device_s,
        prompts_sha256=prompts.digest(asked),
    )
    return [sample, path_record("perf", name, arm, cell.id, whole)]


def joined(parts: Sequence[Generation]) -> Generation:
    """Calls that follow each other as one."""
    if len(parts) == 1:
        return parts[0]
    return Generation(
        answers=tuple(answer for part in parts for answer in part.answers),
        steps=tuple(step for part in parts for step in part.steps),
        # The engine may run a last step that nobody waited for.
        path=tuple(step for part in parts for step in part.path[: len(part.steps)]),
        emitted=tuple(count for part in parts for count in part.emitted),
        contexts=tuple(count for part in parts for count in part.contexts),
        device_s=tuple(
            told for part in parts for told in part.device_s or (None,) * len(part.steps)
        )
        if any(part.device_s for part in parts)
        else (),
    )


def _prompts(
    setting: Setting, session: Session, cell: Cell, corpus: Sequence[int], count: int
) -> list[tuple[int, ...]]:
    """Distinct prompts of exactly the cell's length."""
    heads = session.encode([prompts.header(setting.seed, cell.id, index) for index in range(count)])
    length = cell.context_tokens
    made = []
    for index, head in enumerate(heads):
        offset = (index * 97) % max(1, len(corpus) - length)
        made.append((*head, *corpus[offset : offset + length])[:length])
    return made
