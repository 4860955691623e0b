"""A server's completions for external evals, through lm-eval's own chat-completions client.

A session like any other for whoever asks: prompts are conversations, which the server renders by
itself; what it says it computed must be the tokens that were asked. An answer that failed carries
why as its finish reason, so that its item is recorded and the others go on. Loads lm-eval, and with
it torch: import this module on use.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientSession, ClientTimeout, TCPConnector
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion

from fasttrack.engine.base import Answer, Engine, Generation, Launch, Request, Session
from fasttrack.engine.served import ServerSession
from fasttrack.errors import UsageError

ALTERNATIVES = 2


def served(engine: Engine) -> Engine:
    """The engine behind its server; raises `UsageError` EVL-009 where it has none."""
    if not engine.server:
        raise UsageError(
            "EVL-009",
            f"the engine {engine.name!r} has no OpenAI-compatible server",
            next_step="leave `server` out of the target's evals, or use an engine that has one",
        )
    return _Served(**{**vars(engine), "module": engine.server})


@dataclass(frozen=True)
class _Served(Engine):
    """Boots servers."""

    said: dict[tuple[int, ...], str] = field(default_factory=dict)
    """Conversations by their token ids, which outlive a server that died."""

    def start(self, launch: Launch) -> Session:
        """As `Engine.start`."""
        return ServedSession(super().start(launch), self.said)


class _Client(LocalChatCompletion):
    """lm-eval's client, whose answers are the server's whole answers."""

    def parse_generations(self, outputs: Any, **_: Any) -> list[Any]:
        """Not only the texts."""
        return [outputs]


class ServedSession(ServerSession):
    """A running server, with what of a session external evals need."""

    def __init__(self, session: Session, said: dict[tuple[int, ...], str]) -> None:
        super().__init__(session)
        logging.getLogger("lm_eval.models").setLevel(logging.CRITICAL)
        self._client = _Client(
            base_url=self.chat_url, model=self.model, tokenizer_backend=None, max_retries=1
        )
        self._said = said

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The conversation itself, as JSON: the server renders it."""
        return json.dumps([dict(message) for message in messages], ensure_ascii=False)

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of conversations as the server renders them now."""
        asked = [json.loads(text) for text in texts]
        answer, _ = self._child.call("tokenize", self._timeout_s, conversations=asked)
        found = [tuple(int(one) for one in ids) for ids in answer["ids"]]
        self._said.update(zip(found, texts, strict=True))
        return found

    def generate(
        self,
        requests: Sequence[Request],
        *,
        full_decode_steps: int | None = None,
        mark_after: int | None = None,
        lane_tokens: int = 1,
    ) -> Generation:
        """As `Session.generate`, to the end, of prompts that `encode` gave.

        Raises ENG-003 when the server died meanwhile, whatever it had answered.
        """
        outcomes = asyncio.run(self._ask(requests))
        answers = tuple(map(_answer, requests, outcomes))
        return self.ran().model_copy(update={"answers": answers})

    async def _ask(self, requests: Sequence[Request]) -> list[Any]:
        """The server's answers, all asked at once, each once; an exception where there is none."""
        together = asyncio.Semaphore(len(requests))
        limits = [r.abort_after_s for r in requests if r.abort_after_s is not None]
        async with ClientSession(
            connector=TCPConnector(limit=len(requests)),
            timeout=ClientTimeout(total=min(limits, default=None)),
        ) as session:
            return await asyncio.gather(
                *(
                    self._client.amodel_call(
                        session=session,
                        sem=together,
                        messages=[JsonChatStr(self._said[request.prompt])],
                        gen_kwargs=_options(request),
                    )
                    for request in requests
                ),
                return_exceptions=True,
            )


def _options(request: Request) -> dict[str, Any]:
    """Every parameter that decides an answer: a server has defaults of its own."""
    sampling = request.sampling
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": sampling.ignore_eos,
        "until": list(sampling.stop),
        "seed": sampling.seed,
        "logprobs": True,
        "top_logprobs": ALTERNATIVES,
        "return_token_ids": True,
    }


def _answer(request: Request, outcome: Any) -> Answer:
    """What came of one request."""
    if isinstance(outcome, TimeoutError):
        return Answer(token_ids=(), text="", finish_reason="aborted")
    if isinstance(outcome, BaseException):
        return _failed(f"{type(outcome).__name__}: {outcome}")
    try:
        (whole,) = outcome
        (choice,) = whole["choices"]
        given = tuple(int(one) for one in whole["prompt_token_ids"])
        ids = tuple(int(one) for one in choice["token_ids"])
        positions = (choice["logprobs"] or {}).get("content") or ()
        details = whole["usage"].get("prompt_tokens_details") or {}
        if given != request.prompt or whole["usage"]["prompt_tokens"] != len(given):
            return _failed(f"another prompt of {len(given)} tokens, {len(request.prompt)} asked")
        ranked = [
            sorted((float(one["logprob"]) for one in position["top_logprobs"]), reverse=True)
            for position in positions
        ]
        return Answer(
            token_ids=ids,
            text=choice["message"]["content"] or "",
            finish_reason=str(choice["finish_reason"]),
            cached_tokens=int(details.get("cached_tokens") or 0),
            logprobs=tuple(float(position["logprob"]) for position in positions),
            gaps=tuple(one[0] - one[1] if len(one) > 1 else None for one in ranked),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _failed(f"no whole chat completion: {type(error).__name__}: {error}")


def _failed(why: str) -> Answer:
    told = " ".join(why.split())[:200]
    return Answer(token_ids=(), text="", finish_reason=f"failed: {told}")
