"""The engine protocol: what every room may ask of an engine, and the nouns it speaks in.

Owns: `Launch`, `Sampling`, `Request`, `Boot`, `Session`, `Engine` and what a child answers:
`SessionInfo`, `Encoded`, `Rendered`, `Generation`, `Answer`, `Caches`, `Inspection`, `End`. Knows
no flags of any engine: an engine is a child module that answers ``start``, ``encode``, ``chat``,
``generate``, ``reset_prefix_cache``, ``caches``, ``inspect``, ``end``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from fasttrack.engine.channel import Asked, Child
from fasttrack.errors import EnvironmentUnmet, RunError, UsageError
from fasttrack.schema import Arm, EngineStep, PathStep, StateStep, Target, Timeline
from fasttrack.schema.claim import Frozen, Plugin

Model = TypeVar("Model", bound=Frozen)
START_TIMEOUT_S = 600.0
CALL_TIMEOUT_S = 600.0
END_TIMEOUT_S = 60.0
GRACE_S = 60.0
"""How much longer than `Request.abort_after_s` a call may take before its engine is stopped."""


class Sampling(Frozen):
    """Sampling parameters, named as vLLM names them."""

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = True
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    forced: tuple[int, ...] | None = None
    """Tokens to produce whatever the model says; log-probabilities and ranks are the model's own.
    Needs a session that forces."""
    structured: Mapping[str, Any] | None = None
    """One of ``{"json": schema}``, ``{"regex": text}``, ``{"choice": [texts]}``,
    ``{"grammar": text}``."""


class Request(Frozen):
    """One prompt, as token ids, and what happens to it while it runs."""

    prompt: tuple[int, ...] = Field(min_length=1)
    sampling: Sampling = Sampling()
    arrive_after: int = 0
    """Engine steps of this call before the request is handed in."""
    abort_after: int | None = None
    """Produced tokens after which the request is given up."""
    abort_after_s: float | None = None
    """Seconds from the start of the call after which the request is given up; those beside it go
    on."""
    stream: bool = False
    """Ask for each step's new tokens only, and keep them apart."""


class Delta(Frozen):
    """What one step added to a streamed answer."""

    token_ids: tuple[int, ...]
    text: str


class Answer(Frozen):
    """What the engine made of one request; of its first sequence, if `n` asked for more."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    stop_reason: int | str | None = None
    """The stop string or token id that ended the answer."""
    cached_tokens: int = 0
    logprobs: tuple[float | None, ...] = ()
    """Log-probability of each produced token, nats."""
    gaps: tuple[float | None, ...] = ()
    """Distance to the next likeliest token, nats; null when only one was reported."""
    listed: tuple[int, ...] = ()
    """Number of alternatives the engine listed per position."""
    ranks: tuple[int, ...] = ()
    """Rank of each produced token among the model's own probabilities; 1 is the likeliest."""
    prompt_logprobs: tuple[float | None, ...] = ()
    """Log-probability of each prompt token, nats; null for the first."""
    deltas: tuple[Delta, ...] = ()
    """Of a streamed request, in order."""
    others: tuple[Answer, ...] = ()
    """The further sequences of a request with `n` above 1, in their order."""


class Generation(Frozen):
    """Answers in request order, with what the engine and the optimization say of each step."""

    answers: tuple[Answer, ...]
    steps: tuple[EngineStep, ...]
    path: tuple[PathStep, ...]
    emitted: tuple[int, ...] = ()
    """Tokens handed out by each step."""
    contexts: tuple[int, ...] = ()
    """Tokens of context over the rows of each step, its own included."""
    device_s: tuple[float | None, ...] = ()
    """Seconds of the model's graph in each step, by the device's clock; null in a step without one,
    empty where nothing is known."""
    marks: tuple[tuple[int, float], ...] = ()
    """(steps so far, the caller's monotonic clock) when the engine told of the window's begin and
    end; set on this side of the channel."""
    drafted: tuple[int, ...] = ()
    """Indices of steps in which some row verified draft tokens, as the scheduler tells."""
    preemptions: int = 0
    """Requests that lost their cache to others and were computed again."""
    nan_logits: int = 0
    """Logits that were NaN; counted when the launch asks for it."""
    draft_tokens: int = 0
    """Draft tokens that were verified."""
    accepted_tokens: int = 0
    """Draft tokens that were kept."""
    left: int = 0
    """Requests, running or waiting, when the call returned."""
    cache_usage: float = 0.0
    """Share of the cache held by requests when the call returned."""


class Caches(Frozen):
    """The engine's caches as they lie in memory, between two calls."""

    nonfinite: int | None
    """Values that are NaN or Inf, outside the null block; null if that was not asked."""
    null_nonfinite: int
    """The same inside the null block, which belongs to no request."""
    null_sha256: str
    """Digest of the null block's bytes in every layer."""


class CachesSeen(Frozen):
    """What ``caches`` answers."""

    caches: Caches | None


class RankEvidence(Frozen):
    """What the harness itself saw of one rank during a call of the path stage."""

    entry_calls: int | None = None
    """Calls of the claim's entry; null if there is none or calls cannot be counted."""
    trace: tuple[Mapping[str, int], ...] = ()
    """Names and how often each was seen, per engine step, if asked for."""
    state: tuple[StateStep, ...] = ()
    """Cache changes per engine step, if asked for."""
    watched_blocks: int = 0
    blocks: int = 0
    problem: str = ""
    """Why state or timeline could not be watched."""


class Evidence(RankEvidence):
    """A call of the path stage: what was generated, and what was seen of the first rank."""

    generation: Generation
    timeline: Timeline | None = None
    """Of a steady decode step, if asked for."""
    others: tuple[RankEvidence, ...] = ()
    """Of the other ranks, in order."""


class Routed(Frozen):
    """Which experts some prompts were sent to; no expert where the model has none."""

    experts: int
    layers: tuple[tuple[int, ...], ...] = ()
    """How often each expert was chosen, per layer."""
    problem: str = ""
    """Why it could not be seen."""


class Code(Frozen):
    """Compiled code mapped by the child; see `engine.code`."""

    files: Mapping[str, str]


class Encoded(Frozen):
    """Token ids of texts."""

    ids: tuple[tuple[int, ...], ...]


class Rendered(Frozen):
    """A conversation as the text that is tokenised."""

    text: str


class End(Frozen):
    """What a session says when it ends."""

    peak_rss_mib: float | None


class Inspection(Frozen):
    """What the engine's process consists of, for the isolation stage to compare between boots."""

    facts: Mapping[str, Mapping[str, str]]
    """Group (`code`, `objects`, `operators`, `architectures`, `environment`, `torch`, `hooks`,
    `modules`) -> name -> short text, equal in every boot of the same engine."""


class SessionInfo(Frozen):
    """What a started engine says about itself."""

    switch: str | None
    """Effective switch value as the optimization reports it; null when it reports none."""
    fingerprint: Mapping[str, str | int | float | bool | None]
    prepared_batches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """Everything needed to boot one session."""

    session: str
    arm: Arm
    target: Target
    additional_config: Mapping[str, Any]
    log: Path
    plugin: Plugin | None = None
    checkpoint: Path | None = None
    """None: the engine's own tiny unrelated model, used by the isolation stage."""
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = START_TIMEOUT_S
    call_timeout_s: float = CALL_TIMEOUT_S
    count_nans: bool = False
    """Count NaN logits, which costs time in every step."""
    forces: bool = False
    """Requests may bring tokens to force, which costs time in every step."""


class Session:
    """A running engine. Use as a context manager: the child never outlives it."""

    def __init__(self, child: Child, info: SessionInfo, call_timeout_s: float) -> None:
        self._child = child
        self._timeout_s = call_timeout_s
        self.info = info
        self.peak_rss_mib: float | None = None

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of texts, without special tokens."""
        answer, _ = self._child.call("encode", self._timeout_s, texts=list(texts))
        return list(_parsed(self._child, "encode", Encoded, answer).ids)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Messages (`role`, `content`) through the model's own chat template, up to the answer."""
        told = [dict(message) for message in messages]
        answer, _ = self._child.call("chat", self._timeout_s, messages=told)
        return _parsed(self._child, "chat", Rendered, answer).text

    def generate(
        self,
        requests: Sequence[Request],
        *,
        full_decode_steps: int | None = None,
        mark_after: int | None = None,
        lane_tokens: int = 1,
    ) -> Generation:
        """Run requests together until all finish.

        With `full_decode_steps`, stop instead as soon as that many steps have decoded exactly
        `lane_tokens`, draft tokens among them, for every request with no prefill beside them;
        answers are then partial. The engine tells after the first `mark_after` of them and after
        the last: see `Generation.marks`. Raises `RunError` ENG-003..006.
        """
        marks: list[tuple[int, float]] = []
        limits = [r.abort_after_s + GRACE_S for r in requests if r.abort_after_s is not None]
        answer, _ = self._child.call(
            "generate",
            max([self._timeout_s, *limits]),
            marks=marks,
            requests=[request.json_value() for request in requests],
            full_decode_steps=full_decode_steps,
            mark_after=mark_after,
            lane_tokens=lane_tokens,
        )
        made = _parsed(self._child, "generate", Generation, answer)
        return made.model_copy(update={"marks": tuple(marks)})

    def inspect(self) -> Inspection:
        """What the process consists of now; call it after the engine has worked."""
        answer, _ = self._child.call("inspect", self._timeout_s)
        return _parsed(self._child, "inspect", Inspection, answer)

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Raises `RunError` ENG-006 when the engine refuses."""
        self._child.call("reset_prefix_cache", self._timeout_s)

    def caches(self, null_fill: float | None = None, *, whole: bool = False) -> Caches | None:
        """Look at the null block, and scan the `whole` of the caches if asked, which takes time.

        With `null_fill`, a number or NaN, the null block is filled with it first. None where the
        engine cannot look at its caches.
        """
        fill = None if null_fill is None else repr(null_fill)
        answer, _ = self._child.call("caches", self._timeout_s, null_fill=fill, whole=whole)
        return _parsed(self._child, "caches", CachesSeen, answer).caches

    def evidence(
        self,
        requests: Sequence[Request],
        *,
        trace: bool = False,
        state: bool = False,
        watermark: bool = False,
        timeline: bool = False,
    ) -> Evidence:
        """As `generate`, under observation; slow, and never inside a measured window.

        `watermark` replaces what the claim's entry returns by a constant; `timeline` needs about 16
        decode steps.
        """
        answer, _ = self._child.call(
            "evidence",
            self._timeout_s,
            requests=[request.json_value() for request in requests],
            trace=trace,
            state=state,
            watermark=watermark,
            timeline=timeline,
        )
        return _parsed(self._child, "evidence", Evidence, answer)

    def routing(self, prompts: Sequence[tuple[int, ...]], seed: int | None = None) -> Routed:
        """Prefill prompts and tell which experts they were sent to; slow.

        With a `seed`, random tokens from the whole vocabulary instead, of the same lengths.
        """
        asked = [Request(prompt=prompt, sampling=Sampling(max_tokens=1)) for prompt in prompts]
        told = [one.json_value() for one in asked]
        answer, _ = self._child.call("routing", self._timeout_s, requests=told, seed=seed)
        return _parsed(self._child, "routing", Routed, answer)

    def code(self) -> Mapping[str, str]:
        """Compiled code that the engine's process has mapped: name by digest."""
        answer, _ = self._child.call("code", self._timeout_s)
        return _parsed(self._child, "code", Code, answer).files

    def kill(self) -> None:
        """Stop the engine without a word."""
        self._child.kill()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._child.alive:
                answer = self._child.call("end", END_TIMEOUT_S)[0]
                self.peak_rss_mib = _parsed(self._child, "end", End, answer).peak_rss_mib
                self._child.close()
        finally:
            self._child.kill()


@dataclass(frozen=True)
class Engine:
    """An engine by name: the module that runs in the child and the packages it needs."""

    name: str
    module: str
    server: str = ""
    """The child module that keeps an OpenAI-compatible server; empty where there is none."""
    requires: tuple[tuple[str, str], ...] = ()
    """(importable package, extra that brings it)."""
    env: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `EnvironmentUnmet` ENV-001 when a needed package is not installed."""
        for package, extra in self.requires:
            if importlib.util.find_spec(package) is None:
                raise EnvironmentUnmet(
                    "ENV-001",
                    f"engine {self.name!r} needs the package {package!r}",
                    next_step=f"pip install 'fasttrack[{extra}]'",
                )

    def start(self, launch: Launch) -> Session:
        """Boot a session and wait until it is ready; raises as `Boot.wait` does."""
        return self.boot(launch).wait()

    def boot(self, launch: Launch) -> Boot:
        """Begin to boot a session, and leave it to itself."""
        self.check()
        child = Child(
            self.module, log=launch.log, env={**self.env, **launch.env}, cell=launch.session
        )
        try:
            asked = child.ask(
                "start",
                launch.start_timeout_s,
                session=launch.session,
                arm=launch.arm,
                target=launch.target.json_value(),
                additional_config=dict(launch.additional_config),
                plugin=launch.plugin.json_value() if launch.plugin else None,
                checkpoint=str(launch.checkpoint) if launch.checkpoint else None,
                count_nans=launch.count_nans,
                forces=launch.forces,
            )
        except BaseException:
            child.kill()
            raise
        return Boot(child, asked, launch.call_timeout_s)


@dataclass(frozen=True)
class Boot:
    """A session that is being booted."""

    child: Child
    asked: Asked
    call_timeout_s: float

    def wait(self) -> Session:
        """The session, when it is ready.

        Raises the coded error of the child; `RunError` ENG-001 for one that carries no code.
        """
        child = self.child
        try:
            info = _parsed(child, "start", SessionInfo, child.wait(self.asked)[0])
        except RunError as error:
            child.kill()
            if error.code == "ENG-006":
                # The child's code for any error while it serves; here it never came to serving.
                raise RunError(
                    "ENG-001",
                    error.cause,
                    cell=error.cell,
                    next_step=error.next_step,
                    detail=error.detail,
                ) from error
            raise
        except BaseException:
            child.kill()
            raise
        return Session(child, info, self.call_timeout_s)


def _parsed(child: Child, call: str, model: type[Model], answer: Mapping[str, Any]) -> Model:
    """An answer as its noun; raises `RunError` ENG-005, and stops the child, if it is none."""
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise child.malformed(call, f"{where}: {first['msg']}") from None


def check_switch(info: SessionInfo, expected: str, key: str) -> None:
    """Raise `UsageError` CLM-006 unless the session reports the expected switch value."""
    if info.switch != expected:
        told = "no value" if info.switch is None else repr(info.switch)
        raise UsageError(
            "CLM-006",
            f"the engine reports {told} for {key}, not {expected!r}",
            next_step="check [switch] and [plugin] in claim.toml",
        )
