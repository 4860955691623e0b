"""Asks an engine the items of one external eval and survives what happens meanwhile.

Every (item, sample) is asked once: a call that fails leaves its items as records with their error,
a dead engine is booted again for the rest, and a journal keeps what was answered. Owns requests,
seeds, boots and records; knows no data and no lm-eval.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from fasttrack.engine.base import Answer, Generation, Request, Sampling, Session
from fasttrack.engine.setting import AS_TARGETED, Setting, Variant, path_record
from fasttrack.errors import FasttrackError, RunError
from fasttrack.evals.ended import unended
from fasttrack.evals.external.journal import Journal
from fasttrack.evals.manifest import Manifest, prompt_digest, sample_name
from fasttrack.evals.scorers import SCORERS
from fasttrack.schema import Arm, ItemRecord, Record, SessionRecord

MAX_BOOTS = 4
"""Boots of one attempt, after which what is left is recorded as failed."""
DEAD = ("ENG-003", "ENG-004", "ENG-005")
"""Errors after which the engine's process is gone."""
Repeat = Literal["main", "control"]
Place = tuple[int, int]
"""(index of the item, number of the sample)."""


class Asker:
    """One eval in one arm. Use as a context manager."""

    def __init__(self, setting: Setting, arm: Arm, manifest: Manifest, journal: Journal) -> None:
        self._setting = setting
        self._arm: Arm = arm
        self._manifest = manifest
        self._journal = journal
        self._stack = contextlib.ExitStack()
        self._session: Session | None = None
        self._running: SessionRecord | None = None
        self._left = MAX_BOOTS
        wanted = setting.target.evals[manifest.eval]  # type: ignore[index]
        # A server has other defaults than an engine in a child, such as its token budget.
        self._variant = Variant("server") if wanted.server else AS_TARGETED
        self._began = False

    def __enter__(self) -> Asker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The rendered prompt; raises what `Engine.start` raises."""
        return self._up().chat(messages)

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of rendered prompts."""
        return self._up().encode(texts)

    def ask(
        self,
        places: Sequence[Place],
        prompts: Sequence[Sequence[int]],
        repeat: Repeat,
        concurrency: int,
    ) -> dict[Place, ItemRecord]:
        """Answers to samples of items, `concurrency` at a time; those in the journal stand."""
        names = {self._name(place): place for place in places}
        done = {
            names[record.item]: record
            for record in self._journal.answers()
            if record.repeat == repeat and record.item in names
        }
        waiting = [place for place in places if place not in done]
        began, first = time.monotonic(), len(done)
        for start in range(0, len(waiting), concurrency):
            chosen = waiting[start : start + concurrency]
            for record in self._call(chosen, prompts, repeat, concurrency):
                done[names[record.item]] = record
            spent = time.monotonic() - began
            left = spent / (len(done) - first) * (len(places) - len(done))
            score = sum(record.score for record in done.values()) / len(done)
            failed = sum(bool(record.error) for record in done.values())
            self._setting.say(
                f"{self._manifest.eval} ({self._arm}, {repeat}): {len(done)} of {len(places)}, "
                f"score {score:.3f}, about {left / 60:.1f} min left"
                + (f", {failed} failed" if failed else "")
            )
        return done

    def _call(
        self,
        chosen: Sequence[Place],
        prompts: Sequence[Sequence[int]],
        repeat: Repeat,
        concurrency: int,
    ) -> list[ItemRecord]:
        """One call of the engine: its records, which are in the journal when this returns."""
        requests = [
            Request(
                prompt=tuple(prompts[place[0]]),
                sampling=self._sampling(place),
                abort_after_s=self._setting.timeout_s,
            )
            for place in chosen
        ]
        made: Generation | None = None
        told = ""
        kept: list[Record] = []
        try:
            session = self._up()
            # Every call meets an empty cache: what an arm finds there must not depend on boots.
            session.reset_prefix_cache()
            made = session.generate(requests)
        except FasttrackError as error:
            told = f"{error.code}: {error.cause}"[:500]
            if not self._began:
                raise  # the caller's error, not the items'
            if not isinstance(error, RunError) or error.code in DEAD:
                self._stop(error)
        if made is not None and self._running is not None:
            cell = f"evals/{self._manifest.eval}/{repeat}/concurrency={concurrency}"
            if made.steps:  # a log that no scheduler bears out is no evidence
                kept.append(path_record("evals", self._running.session, self._arm, cell, made))
            told = _cut(requests, made)
        answers: Sequence[Answer] = made.answers if made is not None else ()
        records = []
        for index, (place, request) in enumerate(zip(chosen, requests, strict=True)):
            answer = answers[index] if index < len(answers) else None
            records.append(self._record(place, request, answer, told, repeat, concurrency))
        self._journal.add([*self._as_of_now(), *kept, *records])
        return records

    def _record(
        self,
        place: Place,
        request: Request,
        answer: Answer | None,
        told: str,
        repeat: Repeat,
        concurrency: int,
    ) -> ItemRecord:
        item = self._manifest.items[place[0]]
        score = SCORERS[self._manifest.eval].score(item.prefix, item.answer, answer.text) if (
            answer
        ) else 0.0  # fmt: skip
        return ItemRecord(
            eval=self._manifest.eval,
            item=self._name(place),
            prompt_sha256=item.prompt_sha256,
            arm=self._arm,
            repeat=repeat,
            concurrency=concurrency,
            prompt_tokens=len(request.prompt),
            cached_tokens=answer.cached_tokens if answer else 0,
            token_ids=answer.token_ids if answer else (),
            text=answer.text if answer else "",
            logprobs=answer.logprobs if answer else (),
            gaps=answer.gaps if answer else (),
            finish_reason=answer.finish_reason if answer else "lost",
            score=score,
            error=told or _odd(request, answer),
            seed=request.sampling.seed,
        )

    def _sampling(self, place: Place) -> Sampling:
        manifest = self._manifest
        return Sampling(
            max_tokens=manifest.answer_tokens,
            temperature=manifest.temperature,
            top_p=manifest.top_p,
            seed=self._seed(place) if manifest.temperature > 0 else None,
            logprobs=2,
            ignore_eos=False,
        )

    def _seed(self, place: Place) -> int:
        """A sample's own seed, equal in both arms and in every attempt."""
        text = f"{self._setting.seed}/{self._manifest.eval}/{self._name(place)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def _name(self, place: Place) -> str:
        return sample_name(self._manifest.items[place[0]], place[1], self._manifest.samples)

    def _up(self) -> Session:
        """The running session, booted if there is none."""
        if self._session is not None:
            return self._session
        if self._left == 0:
            raise RunError("ENG-003", f"the engine died {MAX_BOOTS} times; not started again")
        number = self._journal.boots + 1
        name = f"evals-{self._manifest.eval}-{self._arm}" + (f"-{number}" if number > 1 else "")
        ended: list[Record] = []
        stack = contextlib.ExitStack()
        stack.callback(lambda: self._journal.add(ended) if ended else None)
        self._left -= 1
        self._session = stack.enter_context(
            self._setting.session(
                "evals", name, self._arm, ended, self._variant, on_ready=self._ready
            )
        )
        self._stack = stack
        self._began = True
        return self._session

    def _ready(self, record: SessionRecord) -> None:
        self._running = record
        self._journal.add([record])

    def _as_of_now(self) -> list[Record]:
        """The session's record, as if it ended now: it may be killed before it can tell."""
        if self._running is None:
            return []
        return [self._running.model_copy(update={"end_s": time.monotonic()})]

    def _stop(self, error: BaseException) -> None:
        """Leave a session whose engine is gone; the journal knows it as of its last call."""
        with contextlib.suppress(FasttrackError):
            self._stack.__exit__(type(error), error, error.__traceback__)
        self._stack, self._session = contextlib.ExitStack(), None


def check_prompts(manifest: Manifest, ids: Sequence[Sequence[int]]) -> Sequence[int]:
    """Indices of items whose rendered prompt is not the frozen one."""
    return [
        index
        for index, (item, one) in enumerate(zip(manifest.items, ids, strict=True))
        if prompt_digest(one) != item.prompt_sha256
    ]


def _odd(request: Request, answer: Answer | None) -> str:
    """Why an answer is none to what was asked; empty for an honest one."""
    if answer is None:
        return "no answer"
    told = unended(request, answer)
    if told or not answer.token_ids:
        return told or "no answer"
    if len(answer.token_ids) > request.sampling.max_tokens:
        return f"{len(answer.token_ids)} tokens, {request.sampling.max_tokens} were asked for"
    head = min(len(answer.token_ids), len(request.prompt))
    if head >= 8 and answer.token_ids[:head] == request.prompt[:head]:
        return "the answer is the prompt again"
    return ""


def _cut(requests: Sequence[Request], made: Generation) -> str:
    """Whether the engine computed fewer prompt tokens than it was given; empty if not."""
    given = sum(len(request.prompt) for request in requests)
    seen = sum(step.prefill_tokens for step in made.steps)
    seen += sum(answer.cached_tokens for answer in made.answers)
    whole = len(made.answers) == len(requests)
    # Where steps cannot be watched, a server's word for the prompt was checked token by token.
    short = whole and made.steps and seen < given
    return f"{seen} of {given} prompt tokens were computed" if short else ""
