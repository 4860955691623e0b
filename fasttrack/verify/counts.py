"""Step 11, second half: tokens, copies, repeats and seeds add up, and are those of the plan.

Each check is a small generator over `Facts` that yields a contradiction. Read by `consistency`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from fasttrack.schema import (
    CompiledRecord,
    ConductRecord,
    FeatureRecord,
    ItemRecord,
    KernelRecord,
    Record,
    SampleRecord,
    SanitizerRecord,
)
from fasttrack.verify.facts import Contradiction, Facts

SHORTEST_VECTOR = 8
"""Step times that agree in fewer places may do so by chance on a coarse clock."""


def _tokens(facts: Facts) -> Iterator[Contradiction]:
    for sample in facts.samples:
        where = f"{sample.session} {sample.cell}"
        decoded = sum(step.decode_tokens for step in sample.steps)
        prefilled = sum(step.prefill_tokens for step in sample.steps)
        if sample.completed_requests > sample.planned_requests:
            yield Contradiction("VER-089", f"{where}: more requests ended than began", sample)
        if sample.output_tokens > decoded + sample.planned_requests:
            # The first token of a request comes out of its last prefill step.
            yield Contradiction(
                "VER-089",
                f"{where}: {sample.output_tokens} tokens from steps that decoded {decoded}",
                sample,
            )
        whole = sample.completed_requests == sample.planned_requests
        if whole and prefilled < sample.prompt_tokens - sample.cached_tokens:
            yield Contradiction(
                "VER-089",
                f"{where}: {prefilled} of {sample.prompt_tokens} prompt tokens were prefilled",
                sample,
            )


def _copies(facts: Facts) -> Iterator[Contradiction]:
    seen: dict[bytes, SampleRecord] = {}
    for sample in () if facts.simulated else facts.samples:
        if len(sample.steps) < SHORTEST_VECTOR:
            continue
        times = array("d", [step.duration_s for step in sample.steps])
        vector = hashlib.sha256(times.tobytes()).digest()
        other = seen.setdefault(vector, sample)
        if other is not sample:
            yield Contradiction(
                "VER-090",
                f"{sample.session} {sample.cell} has the step times of {other.session} "
                f"{other.cell}",
                sample,
            )


def _repeats(facts: Facts) -> Iterator[Contradiction]:
    keyed: list[tuple[tuple[str, ...], Record]] = [
        *((("item", r.eval, r.item, r.arm, r.repeat), r) for r in facts.of(ItemRecord)),
        *(
            (("kernel", r.cell, str(r.seed), r.output, r.control or "", r.probe or ""), r)
            for r in facts.of(KernelRecord)
        ),
        *((("conduct", r.cell), r) for r in facts.of(ConductRecord)),
        *((("compiled", r.cell, r.control or ""), r) for r in facts.of(CompiledRecord)),
        *((("sanitizer", r.op, r.tool), r) for r in facts.of(SanitizerRecord)),
        *((("feature", r.feature, r.arm), r) for r in facts.of(FeatureRecord)),
    ]
    seen: set[tuple[str, ...]] = set()
    for key, record in keyed:
        if key in seen:
            yield Contradiction("VER-091", f"recorded twice: {' '.join(key)}", record)
        seen.add(key)


def _own_counts(facts: Facts) -> Iterator[Contradiction]:
    for kernel in facts.of(KernelRecord):
        if not 0 <= kernel.repeats_equal <= kernel.repeats:
            yield Contradiction("VER-092", f"{kernel.cell}: more repeats agree than ran", kernel)
    for item in facts.of(ItemRecord):
        count = len(item.token_ids)
        if len(item.logprobs) > count or len(item.gaps) > count or not 0 <= item.score <= 1:
            yield Contradiction("VER-092", f"{item.item}: values beyond its tokens", item)


def _kernel_plan(facts: Facts) -> Iterator[Contradiction]:
    """Each cell ran from every planned seed, as often as planned, in the regime it is named after.

    A hang ends its op, so there fewer seeds are honest; a case without an answer has no repeats.
    """
    wanted = set(range(facts.run.seed, facts.run.seed + facts.amounts["seeds"]))
    kernels = facts.of(KernelRecord)
    ended = {k.op for k in kernels if k.status in ("hung", "absent") or "ENG-004" in k.message}
    seeds: dict[str, set[int]] = defaultdict(set)
    last: dict[str, KernelRecord] = {}
    failed = {kernel.cell for kernel in kernels if kernel.status != "ok"}
    repeats: dict[tuple[str, str], int] = defaultdict(int)
    for kernel in kernels:
        seeds[kernel.cell].add(kernel.seed)
        last[kernel.cell] = kernel
        named = {kernel.op, *(f"{key}={value}" for key, value in kernel.regime.items())}
        if set(kernel.cell.split("/")) != named:
            yield Contradiction("VER-096", f"{kernel.cell} ran in {sorted(named)}", kernel)
        compared = kernel.control is None and kernel.probe is None
        if compared and kernel.untouched_equal is None and kernel.cell not in failed:
            repeats[kernel.cell, kernel.output] += kernel.repeats
    for cell, kernel in last.items():
        if not seeds[cell] <= wanted or (seeds[cell] != wanted and kernel.op not in ended):
            yield Contradiction(
                "VER-096", f"{cell}: {len(seeds[cell])} seeds are not the planned ones", kernel
            )
    yield from _kernel_repeats(facts, last, repeats)


def _kernel_repeats(
    facts: Facts, last: Mapping[str, KernelRecord], repeats: Mapping[tuple[str, str], int]
) -> Iterator[Contradiction]:
    """Every cell was repeated as the plan says: in full, or a little when it was not its turn.

    Turns only exist where the whole op was measured; then one cell at least has had its own.
    """
    full = facts.amounts["repeats"]
    few = facts.amounts["few_repeats"] if facts.run.cell is None else full
    most: dict[str, int] = defaultdict(int)
    for (cell, _output), count in repeats.items():
        op = last[cell].op
        most[op] = max(most[op], count)
        if count not in (few, full):
            yield Contradiction("VER-096", f"{cell}: {count} repeats of {few}", last[cell])
    for op, count in most.items():
        whole = all(kernel.status == "ok" for kernel in last.values() if kernel.op == op)
        if whole and count < full:
            kernel = next(kernel for kernel in last.values() if kernel.op == op)
            yield Contradiction("VER-096", f"{op}: no cell has {full} repeats", kernel)


CHECKS: tuple[Callable[[Facts], Iterator[Contradiction]], ...] = (
    _tokens,
    _copies,
    _repeats,
    _own_counts,
    _kernel_plan,
)
