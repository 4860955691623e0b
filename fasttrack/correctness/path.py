"""The path stage: proofs that do not rest on the optimization's own word, in one short session.

Per kind of later work (features, evals, perf at the smallest and the largest batch) the same
prompts run twice: once with a profiler around every step, once with the entry's result replaced by
a constant. Then the caches are compared around every step, and one request is answered alone and,
along the same tokens, with a prefill beside it in every other step. Both arms do the same: base is
the control. Nothing here is timed but one decode step at the grid's smallest cell, under the
profiler, for the report's picture. Owns the calls; what follows from them is for `rules.proof`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fasttrack.engine.base import Answer, Evidence, RankEvidence, Request, Sampling, Session
from fasttrack.engine.setting import Setting, path_record
from fasttrack.evals.task import prompt_room
from fasttrack.evals.tasks import registry
from fasttrack.schema import (
    Arm,
    CodeRecord,
    EngineStep,
    Record,
    StateRecord,
    Target,
    TimelineRecord,
    TraceRecord,
    TwinAnswer,
    TwinRecord,
)

TOKENS = 6
"""Decoded per answer where names are looked at: every decode step shows the same."""
LENGTHS = (9, 33, 70)
LONG_TOKENS = 24
"""Of the answer that is interrupted every other step."""
LATE_TOKENS = 3
TIMED_TOKENS = 20
"""Of the answers whose steps are profiled for the timeline."""
ITEMS = 3
ENV = {"FASTTRACK_OBSERVED": "1"}


def run(setting: Setting, spec: Mapping[str, Any]) -> list[Record]:
    """All proofs in one arm."""
    arm: Arm = spec["arm"]
    name = f"path-{arm}"
    records: list[Record] = []
    with setting.session("path", name, arm, records, env=ENV, forces=True) as session:
        calls = _Calls(session, setting, name, arm, records)
        calls.state()
        calls.alternation()
        calls.timeline()
        for kind, requests in kinds(session, setting):
            calls.kind(kind, requests)
        records.append(CodeRecord(stage="path", source="engine", arm=arm, files=session.code()))
    return records


def kinds(session: Session, setting: Setting) -> Iterator[tuple[str, list[Request]]]:
    """A few requests like those of each later stage."""
    told = Sampling(max_tokens=TOKENS, logprobs=2)
    yield "features", [_request(session, setting, n, told) for n in LENGTHS]
    room = prompt_room(setting.target.max_model_len, TOKENS)
    items = registry()[0].items(setting.seed, 4 * ITEMS, room)[:ITEMS]
    prompts = session.encode([item.prompt for item in items])
    yield "evals", [Request(prompt=prompt, sampling=told) for prompt in prompts]
    for batch in batches(setting.target):
        requests = [
            _request(session, setting, 8, Sampling(max_tokens=TOKENS), salt=n) for n in range(batch)
        ]
        yield f"perf/batch={batch}", requests


def batches(target: Target) -> Sequence[int]:
    """The smallest and the largest of the grid."""
    return sorted({min(target.grid.batch), max(target.grid.batch)})


def _request(
    session: Session, setting: Setting, length: int, sampling: Sampling, salt: int = 0
) -> Request:
    letters = random.Random(f"path/{setting.seed}/{length}/{salt}").choices(
        "abcdefghijklmnopqrstuvwxyz ,.", k=4 * length
    )
    return Request(prompt=session.encode(["".join(letters)])[0][:length], sampling=sampling)


class _Calls:
    """The calls of one session; each leaves its records."""

    def __init__(
        self, session: Session, setting: Setting, name: str, arm: Arm, records: list[Record]
    ) -> None:
        self._session = session
        self._setting = setting
        self._name = name
        self._arm = arm
        self._records = records

    def _evidence(self, cell: str, requests: Sequence[Request], **asked: Any) -> Evidence:
        self._setting.say(f"{cell} ({self._arm})")
        seen = self._session.evidence(requests, **asked)
        self._records.append(path_record("path", self._name, self._arm, cell, seen.generation))
        return seen

    def kind(self, kind: str, requests: Sequence[Request]) -> None:
        """Traced, then with the entry's result replaced."""
        cell = f"path/{kind}/trace"
        traced = self._evidence(cell, requests, trace=True)
        steps = traced.generation.steps
        for rank, seen in enumerate((traced, *traced.others)):
            self._records.append(_trace(self._name, self._arm, cell, steps, seen, rank))
        cell = f"path/{kind}/watermark"
        marked = self._evidence(cell, requests, watermark=True)
        self._records.append(
            TwinRecord(
                change="watermark", session=self._name, arm=self._arm, cell=cell,
                plain=_answers(traced), changed=_answers(marked), entry_calls=marked.entry_calls,
            )
        )  # fmt: skip

    def state(self) -> None:
        """Cache blocks before and after every step."""
        told = Sampling(max_tokens=TOKENS, logprobs=2)
        requests = [_request(self._session, self._setting, n + 1, told) for n in LENGTHS]
        first = self._evidence("path/state", requests, state=True)
        for rank, seen in enumerate((first, *first.others)):
            self._records.append(
                StateRecord(
                    session=self._name, arm=self._arm, cell="path/state", steps=seen.state,
                    rank=rank, watched_blocks=seen.watched_blocks, blocks=seen.blocks,
                    problem=seen.problem,
                )
            )  # fmt: skip

    def alternation(self) -> None:
        """One request alone, then with a prefill beside it in every other step. The second time its
        tokens are forced to be the first time's: an answer that parted could not be compared."""
        told = Sampling(max_tokens=LONG_TOKENS, logprobs=2)
        request = _request(self._session, self._setting, 40, told)
        once = Sampling(max_tokens=1)
        late = [
            _request(self._session, self._setting, LATE_TOKENS, once, salt=n).model_copy(
                update={"arrive_after": 2 * n + 1}
            )
            for n in range(LONG_TOKENS // 2)
        ]
        alone = self._evidence("path/alone", [request])
        plain = alone.generation.answers[0]
        forced = told.model_copy(update={"forced": plain.token_ids})
        again = request.model_copy(update={"sampling": forced})
        changed = self._evidence("path/alternation", [again, *late]).generation.answers[0]
        self._records.append(
            TwinRecord(
                change="alternation", session=self._name, arm=self._arm, cell="path/alternation",
                plain=[_answer(plain)],
                changed=[_answer(changed).model_copy(update={"ranks": changed.ranks})],
            )
        )  # fmt: skip

    def timeline(self) -> None:
        """What ran when in a decode step of the smallest batch and context."""
        grid, told = self._setting.target.grid, Sampling(max_tokens=TIMED_TOKENS)
        length = min(min(grid.context_tokens), self._setting.target.max_model_len - TIMED_TOKENS)
        requests = [
            _request(self._session, self._setting, length, told, salt=n)
            for n in range(min(grid.batch))
        ]
        seen = self._evidence("path/timeline", requests, timeline=True)
        self._records.append(
            TimelineRecord(
                session=self._name, arm=self._arm, cell="path/timeline", seen=seen.timeline,
                problem="" if seen.timeline else seen.problem or "no decode step was profiled",
            )
        )  # fmt: skip


def _trace(
    session: str, arm: Arm, cell: str, steps: Sequence[EngineStep], seen: RankEvidence, rank: int
) -> TraceRecord:
    """Names per kind of step, as the scheduler tells the kind."""
    decode: list[Mapping[str, int]] = []
    prefill: list[Mapping[str, int]] = []
    for step, names in zip(steps, seen.trace, strict=False):
        pure = step.decode_tokens and not step.prefill_tokens
        (decode if pure else prefill).append(names)
    return TraceRecord(
        session=session,
        arm=arm,
        cell=cell,
        decode_steps=len(decode),
        least={n: c for n, c in _extreme(decode, min).items() if all(n in one for one in decode)},
        most=_extreme(decode, max),
        prefill=_extreme(prefill, max),
        entry_calls=seen.entry_calls,
        rank=rank,
    )


def _extreme(steps: Sequence[Mapping[str, int]], choose: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for names in steps:
        for name, count in names.items():
            found[name] = choose(found.get(name, count), count)
    return found


def _answers(seen: Evidence) -> tuple[TwinAnswer, ...]:
    return tuple(_answer(answer) for answer in seen.generation.answers)


def _answer(answer: Answer) -> TwinAnswer:
    return TwinAnswer(token_ids=answer.token_ids, logprobs=answer.logprobs, gaps=answer.gaps)
