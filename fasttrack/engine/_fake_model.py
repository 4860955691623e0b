"""What the fake engine answers: letters ranked by a hash of everything before them.

Owns the sequences' content: sampling parameters are applied as an engine would, and faults that
change answers are planted here. Owns no clock and no scheduling. Read by the fake child.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fasttrack.engine.base import Answer, Delta, Request, Sampling

STARVED_TOKENS = 3
RATIO = 0.8
"""Of the probabilities of neighbouring ranks."""
LOGPROBS = [rank * math.log(RATIO) + math.log((1 - RATIO) / (1 - RATIO**95)) for rank in range(95)]
"""By rank, 0 being the likeliest."""
STRIDES = (1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 21)
"""Steps through the 95 letters that meet each of them."""
FAR = -1e9
PLAIN = {
    "temperature": 0.0,
    "allowed_token_ids": None,
    "structured": None,
    "bad_words": (),
    "logit_bias": None,
    "min_tokens": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling under which the likeliest token is taken without a look at the others."""


@dataclass
class Lane:
    """One sequence on its way: a request's, or one of the `n` it asked for."""

    request: Request
    index: int
    room: int
    cached: int = 0
    waiting: int = 0
    """Tokens to compute before the next one is made."""
    made: int = 0
    preempted: bool = False
    given_up: bool = False
    starved: bool = False
    """Of a planted fault: makes `STARVED_TOKENS`, and is then not looked at any more."""

    @property
    def limit_s(self) -> float:
        """Seconds of its call after which it is given up."""
        limit = self.request.abort_after_s
        return math.inf if limit is None else limit

    @property
    def length(self) -> int:
        """Tokens of context computed so far."""
        return len(self.request.prompt) - self.waiting + self.made

    @property
    def done(self) -> bool:
        """Whether it has all tokens it may have, or was given up."""
        if self.given_up:
            return True
        return self.made >= self.most

    @property
    def most(self) -> int:
        """Tokens it may have."""
        limit = min(self.request.sampling.max_tokens, self.room)
        after = self.request.abort_after
        return limit if after is None else min(limit, after)


class Model:
    """Answers of one session."""

    def __init__(
        self, fault: str | None, longest: int, drafts: bool, source: random.Random
    ) -> None:
        """`longest`: tokens that fit a request; `source`: seeds of requests without their own."""
        self._fault = fault
        self._longest = longest
        self._drafts = drafts
        self._random = source

    def answer(self, lane: Lane) -> Answer:
        sampling = lane.request.sampling
        drawn = self._tokens(lane)
        text, finish = "".join(chr(token) for token, _ in drawn), "length"
        reason: int | str | None = None
        kept = len(drawn)
        if lane.request.abort_after is not None or lane.given_up:
            finish = "aborted"
        for index, (token, _) in enumerate(drawn):
            if token in sampling.stop_token_ids and index >= sampling.min_tokens:
                kept, finish, reason = index + 1, "stop", token
                break
        text = text[:kept]
        for stop in sampling.stop:
            if stop in text and self._fault != "lost_stop":
                end = text.index(stop) + len(stop)
                text, kept, finish, reason = text[:end], end, "stop", stop
        drawn = drawn[:kept]
        if reason is not None and not (
            sampling.include_stop_str_in_output and isinstance(reason, str)
        ):
            text = text[: len(text) - (len(reason) if isinstance(reason, str) else 1)]
        if self._fault == "echoes":
            drawn = [(token, 0) for token in lane.request.prompt[: len(drawn)]]
            text = "".join(chr(token) for token, _ in drawn)
        if self._fault == "ignores_max_tokens":
            drawn, text = [*drawn, (33, 0)], f"{text}!"
        wanted = sampling.structured
        if wanted and self._fault != "broken_json":
            if "regex" not in wanted:
                text = _structured(wanted)
                drawn = [(ord(letter), 0) for letter in text]
            finish = "stop"
        if self._fault == "inflates_tokens":
            drawn = [*drawn, *drawn]
        ids = tuple(token for token, _ in drawn)
        told = sampling.logprobs is not None and self._fault != "no_logprobs"
        ranks = [rank for _, rank in drawn] if told else []
        deltas = [Delta(token_ids=(token,), text=chr(token)) for token in ids]
        if self._fault == "lost_delta":
            deltas = deltas[:-1]
        return Answer(
            token_ids=ids,
            text=text,
            finish_reason=finish,
            stop_reason=reason,
            cached_tokens=lane.cached,
            logprobs=tuple(LOGPROBS[rank] for rank in ranks),
            gaps=tuple(LOGPROBS[0] - LOGPROBS[1] for _ in ranks),
            listed=tuple(sampling.logprobs or 0 for _ in ranks),
            ranks=tuple(rank + 1 for rank in ranks),
            prompt_logprobs=(None, *(LOGPROBS[token % 95] for token in lane.request.prompt[1:]))
            if sampling.prompt_logprobs is not None
            else (),
            deltas=tuple(deltas) if lane.request.stream else (),
        )

    def _tokens(self, lane: Lane) -> list[tuple[int, int]]:
        """Tokens with their ranks. Every position ranks all letters by a hash of what is before."""
        sampling = lane.request.sampling
        planted = (
            self._fault == "wrong_token"
            or (self._fault == "stale_prefix" and lane.cached)
            or (self._fault == "lost_preempted" and lane.preempted)
            or (self._fault == "bad_drafts" and self._drafts)
        )
        salt = b"planted" if planted else b""
        prompt = lane.request.prompt[: self._longest]
        state = hashlib.sha256(salt + json.dumps(list(prompt)).encode()).digest()
        noise = self._noise_of(lane)
        counts: Counter[int] = Counter()
        made: list[tuple[int, int]] = []
        plain = sampling == sampling.model_copy(update=PLAIN) and not sampling.forced
        shape = _shape(sampling.structured) if self._fault != "broken_json" else None
        for index in range(lane.made if shape is None else min(lane.made, len(shape))):
            order = [32 + (state[0] + rank * STRIDES[state[1] % len(STRIDES)]) % 95
                     for rank in range(1 if plain else 95)]  # fmt: skip
            if shape is not None:
                order = [token for token in order if chr(token) in shape[index]]
            if sampling.forced and sampling.forced[index] in order:
                rank = order.index(sampling.forced[index])
            else:
                rank = 0 if plain else self._choose(order, sampling, counts, made, prompt, noise)
            token = order[rank]
            made.append((token, rank))
            counts[token] += 1
            state = hashlib.sha256(state + bytes([token])).digest()
        return made

    def _noise_of(self, lane: Lane) -> random.Random:
        seed = lane.request.sampling.seed
        if seed is None or self._fault == "ignores_seed":
            seed = self._random.getrandbits(32)
        return random.Random(seed if self._fault == "same_samples" else seed + lane.index)

    def _choose(
        self,
        order: list[int],
        sampling: Sampling,
        counts: Counter[int],
        made: list[tuple[int, int]],
        prompt: Sequence[int],
        noise: random.Random,
    ) -> int:
        """Rank of the next token: bias and penalties, then the truncations, then the draw."""
        text = "".join(chr(token) for token, _ in made)
        scored: list[tuple[float, int]] = []
        bias = sampling.logit_bias or {}
        for rank, token in enumerate(order):
            score = LOGPROBS[rank]
            if self._fault != "no_penalties":
                if counts[token] or token in prompt:
                    score *= sampling.repetition_penalty
                score -= sampling.frequency_penalty * counts[token]
                score -= sampling.presence_penalty * (counts[token] > 0)
            if self._fault != "no_bias":
                score += bias.get(token, 0.0)
                if sampling.allowed_token_ids is not None:
                    score = score if token in sampling.allowed_token_ids else FAR
                if any((text + chr(token)).endswith(word) for word in sampling.bad_words):
                    score = FAR
                if len(made) < sampling.min_tokens and token in sampling.stop_token_ids:
                    score = FAR
            scored.append((score, rank))
        scored.sort(reverse=True)
        if sampling.temperature == 0 or self._fault == "ignores_temperature":
            return scored[0][1]
        if sampling.top_k and self._fault != "ignores_top_k":
            scored = scored[: sampling.top_k]
        weights = [math.exp((score - scored[0][0]) / sampling.temperature) for score, _ in scored]
        total = math.fsum(weights)
        before, kept = 0.0, 0
        for weight in weights:
            if kept and (before >= sampling.top_p * total or weight < sampling.min_p):
                break
            before, kept = before + weight, kept + 1
        return noise.choices([rank for _, rank in scored[:kept]], weights[:kept])[0]


def _shape(wanted: Mapping[str, Any] | None) -> list[str] | None:
    """The letters that a regular expression allows at each place; of ranges and letters only."""
    if not wanted or "regex" not in wanted:
        return None
    places = []
    for low, high, times, letter in re.findall(r"\[(.)-(.)\](?:\{(\d+)\})?|(.)", wanted["regex"]):
        allowed = letter or "".join(map(chr, range(ord(low), ord(high) + 1)))
        places += [allowed] * int(times or 1)
    return places


def _structured(wanted: dict[str, Any] | Any) -> str:
    if "choice" in wanted:
        return str(wanted["choice"][0])
    if "grammar" in wanted:
        return "ab-1"
    return json.dumps(_instance(wanted["json"]))


def _instance(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {key: _instance(value) for key, value in schema.get("properties", {}).items()}
    return {"integer": 1, "number": 1.5, "boolean": True, "array": []}.get(str(kind), "text")
