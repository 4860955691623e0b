"""The stage evals."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from fasttrack.schema import (
    Arm,
    ItemRecord,
    Record,
)
from zoo_records._path import path, session
from zoo_records._run import ARMS


def item(
    index: int,
    arm: Arm,
    repeat: Any = "main",
    *,
    tokens: Sequence[int] = (),
    score: float = 1.0,
    gap: float = 2.0,
    shift: float = 0.0,
    **changes: Any,
) -> ItemRecord:
    """An answer of eight tokens; `shift` moves every log-probability, in nats."""
    ids = tuple(tokens) or tuple(range(index, index + 8))
    return ItemRecord(
        **{
            "eval": "recall",
            "item": f"recall-{index}",
            "prompt_sha256": hashlib.sha256(str(index).encode()).hexdigest(),
            "arm": arm,
            "repeat": repeat,
            "concurrency": 2 if repeat == "control" else 8,
            "prompt_tokens": 512,
            "token_ids": ids,
            "text": " ".join(map(str, ids)),
            "logprobs": tuple(-0.5 - token / 100 + shift for token in ids),
            "gaps": tuple(gap for _ in ids),
            "finish_reason": "length",
            "score": score,
        }
        | changes
    )


def answers(count: int = 20, noise: float = 0.0) -> list[ItemRecord]:
    """Equal answers of both arms, and their controls, which move by `noise` nats."""
    made = []
    for index in range(count):
        score = float(index % 5 != 0)
        made += [
            item(index, "base", score=score),
            item(index, "candidate", score=score),
            *(
                item(index, arm, "control", score=score, shift=noise, gap=2.0 + noise)
                for arm in ARMS
            ),
            *(
                item(
                    index, arm, "replay", score=score, shift=noise, gap=2.0 + noise, ranks=(1,) * 8
                )
                for arm in ARMS
            ),
        ]
    return made


def evals(records: Sequence[Record] | None = None) -> list[Record]:
    """The stage: answers, sessions and paths."""
    made: list[Record] = list(answers() if records is None else records)
    for arm in ARMS:
        made.append(session("evals", f"evals-{arm}", arm))
        for cell in ("main/concurrency=8", "control/concurrency=2", "replay/concurrency=8"):
            made.append(path("evals", arm, cell=f"evals/recall/{cell}"))
    return made
