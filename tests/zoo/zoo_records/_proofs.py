"""Proofs of the path."""

from __future__ import annotations

from collections.abc import Sequence

from fasttrack.schema import (
    Claim,
    CodeRecord,
    Record,
    StateRecord,
    StateStep,
    TraceRecord,
    TwinAnswer,
    TwinRecord,
)
from zoo_records._path import Scheduled, path, session
from zoo_records._run import changed, claim

FAST = {"fast::layer": 2, "host::sample": 1}
STOCK = {"stock::layer": 8, "host::sample": 1}
CODE = {"a" * 64: "mix.so"}
TURNS: Scheduled = ((0, 40), *[(1, 0), (1, 1)] * 4)
"""Every other step also prefills."""


def answer(
    tokens: Sequence[int], shift: float = 0.0, gap: float = 2.0, ranks: Sequence[int] = ()
) -> TwinAnswer:
    """An answer whose log-probabilities are moved by `shift`."""
    logprobs = [-0.5 - token / 100 + shift for token in tokens]
    return TwinAnswer(token_ids=tokens, logprobs=logprobs, gaps=[gap for _ in tokens], ranks=ranks)


def proofs(the_claim: Claim | None = None) -> list[Record]:
    """The path stage of both arms, and the compiled code of the kernel cases."""
    batch = (the_claim or claim()).targets["lab"].grid.batch
    kinds = ["features", "evals", *(f"perf/batch={b}" for b in sorted({min(batch), max(batch)}))]
    made: list[Record] = []
    for arm in ("base", "candidate"):
        name, fast = f"path-{arm}", arm == "candidate"
        code = CODE if fast else {}
        made += [
            session("path", name, arm),
            CodeRecord(stage="path", source="engine", arm=arm, files=code),
            *(CodeRecord(stage="kernels", source=op, arm=arm, files=code) for op in ("mix",)),
        ]
        for kind in kinds:
            traced, marked = f"path/{kind}/trace", f"path/{kind}/watermark"
            scheduled = ((0, 64), (2, 0), (2, 0))
            names = FAST if fast else STOCK
            calls = 2 if fast else 0
            plain, constant = answer((5, 6, 7)), answer((5, 1, 1) if fast else (5, 6, 7))
            made += [
                path("path", arm, scheduled, name=name, cell=traced),
                TraceRecord(
                    session=name, arm=arm, cell=traced, decode_steps=2, least=names, most=names,
                    prefill=STOCK, entry_calls=calls,
                ),
                path("path", arm, scheduled, name=name, cell=marked),
                TwinRecord(
                    change="watermark", session=name, arm=arm, cell=marked, plain=[plain],
                    changed=[constant], entry_calls=calls,
                ),
            ]  # fmt: skip
        logged = path("path", arm, ((0, 64), (2, 0), (2, 0)), name=name, cell="path/state")
        told = [s.model_copy(update={"wrote": {"slots": "1-2", "rows": "9"}}) for s in logged.steps]
        still = StateStep(slots="1-2", rows="9", foreign="", foreign_rows="", null=False)
        made += [
            logged.model_copy(update={"steps": told}),
            StateRecord(
                session=name, arm=arm, cell="path/state", watched_blocks=64, blocks=64,
                steps=[still] * 3,
            ),
            path("path", arm, TURNS, name=name, cell="path/alternation"),
            TwinRecord(
                change="alternation", session=name, arm=arm, cell="path/alternation",
                plain=[answer((5, 6, 7))], changed=[answer((5, 6, 7), 1e-4)],
            ),
        ]  # fmt: skip
    return made


def parted(tokens: Sequence[int], ranks: Sequence[int] = ()) -> list[Record]:
    """The same of a model whose answers part, stock's own too, where paths take turns: into
    `tokens`, or into what has another of the `ranks`."""
    twin = [answer(tokens, ranks=ranks)]
    return changed(proofs(), TwinRecord, lambda r: r.change == "alternation", changed=twin)


def of_ranks(count: int) -> list[Record]:
    """The path stage where each of several ranks was looked at."""
    made: list[Record] = []
    for record in proofs():
        several = isinstance(record, TraceRecord | StateRecord)
        each = range(count) if several else ()
        made += [record.model_copy(update={"rank": rank}) for rank in each] or [record]
    return made
