"""Stage 6: one engine session of one arm, through every cell of the grid.

A cell: `batch` distinct prompts of exactly `context_tokens` tokens are submitted together; the
session decodes until enough steps have run in which every lane decoded and nothing was prefilled.
All steps are kept; the rule cuts the window.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from fasttrack.engine.base import Request, Sampling, Session
from fasttrack.engine.setting import Setting, path_record
from fasttrack.perf import monitors, prompts
from fasttrack.perf.window import WARM_UP_STEPS
from fasttrack.schema import Arm, Cell, MonitorRecord, Record, SampleRecord

DEFAULT_BUDGET = 2048


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """Measure all cells in one boot."""
    arm: Arm = spec["arm"]
    name = f"perf-b{spec['block']}-{spec['position']}-{arm}"
    cells = [
        cell
        for cell in setting.claim.cells(setting.target_name)
        if not setting.cell or fnmatch(cell.id, setting.cell)
    ]
    if not cells:
        return []
    records: list[Record] = []
    before = monitors.snapshot()
    with setting.session("perf", name, arm, records) as session:
        longest = max(cell.context_tokens for cell in cells)
        corpus = session.encode([prompts.corpus(setting.seed, 8 * longest)])[0]
        for index, cell in enumerate(cells):
            setting.say(f"{name}: {cell.id} ({index + 1}/{len(cells)})")
            records.extend(_cell(setting, session, name, arm, cell, corpus, spec))
    records.append(
        MonitorRecord(
            stage="perf", session=name, values=monitors.between(before, monitors.snapshot())
        )
    )
    return records


def _cell(
    setting: Setting,
    session: Session,
    name: str,
    arm: Arm,
    cell: Cell,
    corpus: Sequence[int],
    spec: Mapping[str, Any],
) -> list[Record]:
    asked = _requests(setting, session, cell, corpus, spec)
    start = time.monotonic()
    made = session.generate(asked, full_decode_steps=spec["window_steps"] + WARM_UP_STEPS)
    sample = SampleRecord(
        cell=cell.id,
        arm=arm,
        session=name,
        block=spec["block"],
        position=spec["position"],
        planned_requests=cell.batch,
        completed_requests=len(made.answers),
        prompt_tokens=sum(len(request.prompt) for request in asked),
        cached_tokens=sum(answer.cached_tokens for answer in made.answers),
        output_tokens=sum(len(answer.token_ids) for answer in made.answers),
        call_s=time.monotonic() - start,
        steps=made.steps,
    )
    return [sample, path_record("perf", name, arm, cell.id, made)]


def _requests(
    setting: Setting,
    session: Session,
    cell: Cell,
    corpus: Sequence[int],
    spec: Mapping[str, Any],
) -> list[Request]:
    """Distinct prompts of exactly the cell's length, with room to wait for the last prefill."""
    budget = session.info.fingerprint.get("max_num_batched_tokens")
    budget = int(budget) if isinstance(budget, int) else DEFAULT_BUDGET
    prefill_steps = math.ceil(cell.batch * cell.context_tokens / budget)
    sampling = Sampling(
        max_tokens=min(
            prefill_steps + spec["window_steps"] + WARM_UP_STEPS + 4,
            setting.target.max_model_len - cell.context_tokens,
        )
    )
    heads = session.encode(
        [prompts.header(setting.seed, cell.id, index) for index in range(cell.batch)]
    )
    length = cell.context_tokens
    made = []
    for index, head in enumerate(heads):
        offset = (index * 97) % max(1, len(corpus) - length)
        made.append(
            Request(prompt=(*head, *corpus[offset : offset + length])[:length], sampling=sampling)
        )
    return made
